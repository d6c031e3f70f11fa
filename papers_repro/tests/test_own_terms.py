"""A loss term of a user's module: in a recipe file, and in the processes of a launcher."""

import sys
from dataclasses import replace

import pytest
from new_process import in_new_process

from hypvl.arguments import load_plugin
from hypvl.cli import main
from hypvl.papers.clip_line import recipe
from hypvl.papers.runs import own_modules

TERM = """
from dataclasses import dataclass

from hypvl.losses.terms import LossTerm


@dataclass(frozen=True)
class Spread(LossTerm, kind="my_spread"):
    input: str
    weight: float = 1.0
    name: str = "spread/mine"
    group: str = "spread"

    @property
    def inputs(self):
        return (self.input,)

    def __call__(self, embeddings, geometry, context):
        return context.reduce(-embeddings[self.input].var(0))
"""
MORE = 'objective.more=[{"kind": "my_spread", "input": "image", "weight": 0.1}]'


@pytest.fixture
def plugin(tmp_path):
    file = tmp_path / "my_terms.py"
    file.write_text(TERM)
    return file


def test_a_launcher_imports_the_module_of_a_term(plugin, tmp_path):
    "The command trains with the term in a process of its own, and prints commands that find it."
    smoke = ["train", "phyclip:meru", "--preset", "smoke", "--plugin", str(plugin), "--set", MORE]
    for change in ("train.steps=4", "train.batch_size=8", "probes=[]"):
        smoke += ["--set", change]
    log, out = tmp_path / "log.txt", tmp_path / "runs"
    write = [*smoke, "--write", str(tmp_path / "mine.json")]
    code, said = in_new_process(main, write, log=log)
    assert code == 0 and f"mine.json --plugin {plugin} trains it" in said, said
    launch = ["--launch", "accelerate", "--num_processes", "1", "--device", "cpu"]
    call = [*smoke, "--out", str(out), *launch]
    code, said = in_new_process(main, call, log=log)
    assert code == 0, said
    (metrics,) = out.glob("runs/*/metrics.csv")
    assert "spread/mine" in metrics.read_text().partition("\n")[0]


def test_modules_of_a_recipe(plugin, monkeypatch):
    "The module of each part outside the package; a part of a script cannot be imported elsewhere."
    plain = recipe("meru", "smoke")
    assert own_modules(plain) == {}
    term = load_plugin(str(plugin)).Spread("image")
    mine = replace(plain, objective=replace(plain.objective, more=(term,)))
    assert own_modules(mine) == {"my_terms": str(plugin)}
    monkeypatch.setattr(type(term), "__module__", "__main__")
    with pytest.raises(ValueError, match="Spread is defined in a notebook or script"):
        own_modules(mine)
    monkeypatch.undo()
    del sys.modules["my_terms"]
