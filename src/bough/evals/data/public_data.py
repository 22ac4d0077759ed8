"""Creates the project `bough-public-data`: small computed datasets, identical on every machine.

Every value is derived from its row number by two rounds of a linear congruential generator: no random module, no files.
"""

# ruff: noqa: E501 - SQL reads better in whole lines
from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bough.errors import StoreError

PROJECT: Final = "bough-public-data"

_TABLES = """
create macro lcg(i) as (i * 1103515245 + 12345) % 2147483648;
create macro mixed(i, salt) as lcg((lcg(i * 131 + salt * 7919) // 8) + salt);
create macro part(i, salt, n) as (mixed(i, salt) // 64) % n;
create schema ml_datasets;
create schema retail;
create schema transport;

create table ml_datasets.penguins as
select ['Adelie', 'Chinstrap', 'Gentoo'][s + 1] as species,
    case s when 0 then ['Torgersen', 'Biscoe', 'Dream'][part(i, 1, 3) + 1] when 1 then 'Dream' else 'Biscoe' end as island,
    case when i % 97 = 5 then null else ([388, 488, 475][s + 1] + part(i, 2, 60) - 30) / 10.0::double end as culmen_length_mm,
    case when i % 97 = 5 then null else ([183, 184, 150][s + 1] + part(i, 3, 24) - 12) / 10.0::double end as culmen_depth_mm,
    case when i % 97 = 5 then null else [190, 196, 217][s + 1] + part(i, 4, 16) - 8 end as flipper_length_mm,
    case when i % 97 = 5 then null else [3700, 3730, 5070][s + 1] + (part(i, 5, 41) - 20) * 25 end as body_mass_g,
    case when i % 31 = 7 then null when part(i, 6, 2) = 0 then 'FEMALE' else 'MALE' end as sex
from (select i, case when i < 152 then 0 when i < 220 then 1 else 2 end as s from range(344) t(i));

create table retail.products as
select i + 1 as product_id,
    ['Lamp', 'Chair', 'Desk', 'Shelf', 'Rug', 'Clock', 'Vase', 'Stool'][i % 8 + 1] || ' ' || chr(65 + (i // 8)::int) as name,
    ['lighting', 'seating', 'tables', 'storage', 'textiles', 'decoration', 'decoration', 'seating'][i % 8 + 1] as category,
    (part(i, 11, 180) + 20) * 50 / 100.0::double as price
from range(40) t(i);

create table retail.customers as
select i + 1 as customer_id, 'Customer ' || lpad((i + 1)::varchar, 3, '0') as name,
    ['north', 'south', 'east', 'west'][part(i, 21, 4) + 1] as region,
    ['private', 'business'][case when part(i, 22, 10) < 7 then 1 else 2 end] as segment,
    date '2022-01-01' + part(i, 23, 700)::int as since
from range(500) t(i);

create table retail.orders as
with days as (
    select d, case when d = 531 then 90 else [20, 21, 22, 23, 30, 42, 16][d % 7 + 1] + d // 60 + part(d, 31, 3) end as w
    from range(730) t(d)
), until as (select d, (sum(w) over (order by d) - w) * 20000 / sum(w) over () as first_order from days)
select i + 1 as order_id, part(i, 32, 500) + 1 as customer_id, p.product_id,
    date '2024-01-01' + d::int as order_date, part(i, 34, 4) + 1 as quantity,
    p.price * (part(i, 34, 4) + 1) as amount, ['web', 'shop', 'phone'][least(part(i, 35, 5), 2) + 1] as channel
from range(20000) t(i)
asof join until on t.i >= until.first_order
join retail.products p on p.product_id = part(i, 33, 40) + 1
order by order_id;

create table transport.trips_daily as
select date '2024-01-01' + d::int as trip_date,
    1000 + d + [0, 40, 60, 55, 90, -150, -260][d % 7 + 1] + part(d, 41, 40) - 20 as trips,
    (180 + part(d, 42, 60)) / 10.0::double as mean_minutes
from range(730) t(d);

drop macro part;
drop macro mixed;
drop macro lcg;
"""

_COMMENTS = {
    "ml_datasets.penguins": (
        "344 penguins of three species on three islands, with four measures; some are missing.",
        {
            "species": "Adelie, Chinstrap or Gentoo.",
            "island": "Biscoe, Dream or Torgersen.",
            "culmen_length_mm": "Length of the bill in millimetres.",
            "culmen_depth_mm": "Depth of the bill in millimetres.",
            "flipper_length_mm": "Length of the flipper in millimetres.",
            "body_mass_g": "Body mass in grams.",
            "sex": "FEMALE or MALE; null where it is not known.",
        },
    ),
    "retail.orders": (
        "20,000 orders from 2024-01-01 to 2025-12-30, one product each.",
        {
            "order_id": "Number of the order.",
            "customer_id": "Who ordered; see customers.",
            "product_id": "What was ordered; see products.",
            "order_date": "Day of the order.",
            "quantity": "How many pieces.",
            "amount": "Price times quantity, in euros.",
            "channel": "web, shop or phone.",
        },
    ),
    "retail.customers": (
        "The 500 customers.",
        {
            "customer_id": "Number of the customer.",
            "name": "Made-up name.",
            "region": "north, south, east or west.",
            "segment": "private or business.",
            "since": "Day of the first contact.",
        },
    ),
    "retail.products": (
        "The 40 products.",
        {
            "product_id": "Number of the product.",
            "name": "Kind and model.",
            "category": "lighting, seating, tables, storage, textiles or decoration.",
            "price": "Price of one piece in euros.",
        },
    ),
    "transport.trips_daily": (
        "730 days of trips, with a weekly season and a rising trend.",
        {
            "trip_date": "The day.",
            "trips": "Number of trips.",
            "mean_minutes": "Mean duration of a trip in minutes.",
        },
    ),
}


def ensure_datasets(folder: Path) -> Path:
    """Return the project's DuckDB file in a folder; create it if missing, which takes about a second.

    The name is a digest of the SQL and the comments, so a version of bough with other datasets creates another file.

    Raises:
        StoreError: The file cannot be written.
    """
    digest = sha256((_TABLES + repr(_COMMENTS)).encode()).hexdigest()
    path = folder / f"{digest}.duckdb"
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder) as staging_folder:
            staged_file = Path(staging_folder) / "made.duckdb"
            _create_database(staged_file)
            # Atomic: no reader sees a partial file. Two processes at once create equal files.
            os.replace(staged_file, path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", hint="use another --home") from error
    return path


def _create_database(path: Path) -> None:
    import duckdb

    with duckdb.connect(str(path)) as connection:
        connection.execute(_TABLES)
        for table, (table_comment, column_comments) in _COMMENTS.items():
            connection.execute(f"comment on table {table} is {_quote_literal(table_comment)}")
            for column, comment in column_comments.items():
                connection.execute(f"comment on column {table}.{column} is {_quote_literal(comment)}")


def _quote_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
