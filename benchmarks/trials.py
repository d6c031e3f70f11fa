"""Rows of a CSV to which a script adds one finished trial after the other, so that it can go on."""

import shlex
import sys
from pathlib import Path

import pandas as pd


class Trials:
    "The rows of a CSV; what is there already is not run again."

    def __init__(self, file: Path):
        self.file = file
        self.rows = pd.read_csv(file).to_dict("records") if file.exists() else []

    def has(self, **values) -> bool:
        "Whether there is a row with these values."
        return any(all(row[key] == value for key, value in values.items()) for row in self.rows)

    def add(self, rows: list[dict]) -> None:
        "Append the rows of a trial, each with the command that made it, and print them."
        command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        found = [row | {"command": command} for row in rows]
        self.rows += found
        self.file.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(self.rows).to_csv(self.file, index=False)
        print(pd.DataFrame(found).to_string(index=False, header=False), flush=True)
