#!/usr/bin/env python
"""Captions a second of `parse_shards` beside bare `nlp.pipe` on the same texts.

    python benchmarks/parses.py          # a small parser that is trained on the spot
    python benchmarks/parses.py --parser en_core_web_sm --captions captions_val2017.json
    python benchmarks/parses.py --parser en_core_web_sm --processes 4 --count 40000

Writes shards with pictures of noise, about 15 KB each and three a caption as in prepared GRIT,
into a temporary folder. Bare means: clean texts in memory, Docs thrown away; with several processes
`nlp.pipe(n_process=...)`. `parse_shards` reads and cleans the captions of the tars and writes the
files of parses. Times are CPU times of all processes, so other programs matter less; best of
`--repeats`, in turns. The last row leaves out what is paid once a process: imports and the parser's
load.
"""

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import spacy
from spacy.training import Example

from hypvl.data.grit.shards import write_shard
from hypvl.data.world.captions import caption
from hypvl.data.world.scenes import World
from hypvl.papers.syntax.parsers import load_parser, parse_shards, parser_identity, sidecar
from hypvl.papers.syntax.word_pieces import clean_text


def world_parses(count):
    "Gold parses of world captions."
    world = World()
    for i in range(count):
        yield caption(world, world.scene("train", i)).read()[0]


def train_small(folder):
    "spaCy's default parser of a blank English pipeline, trained on 300 gold captions."
    spacy.util.fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.add_pipe("parser")
    examples = [Example(nlp.make_doc(p.text), p.to_doc(nlp.vocab)) for p in world_parses(300)]
    optimizer = nlp.initialize(lambda: examples)
    for start in range(0, len(examples), 32):
        nlp.update(examples[start : start + 32], sgd=optimizer)
    nlp.to_disk(folder)
    return str(folder)


def write_shards(folder, texts, size):
    "Prepared shards with two boxes per caption."
    picture, rng = os.urandom(15_000), random.Random(0)

    def sample(i, text):
        made = {"__key__": f"{i:08d}", "child.txt": text, "numparents.txt": "2"}
        made |= {"parent000.txt": "a", "parent001.txt": "b"}
        for name in ("child", "parent000", "parent001"):
            made[f"{name}.jpg"] = picture[: rng.randint(8_000, 15_000)]
        return made

    for start in range(0, len(texts), size):
        part = enumerate(texts[start : start + size], start)
        write_shard(folder / f"{start // size:05d}.tar", (sample(i, text) for i, text in part))


def cpu():
    "Seconds of this process and of its finished children."
    while multiprocessing.active_children():
        time.sleep(0.01)
    return sum(os.times()[:4])


def start_up(name, processes):
    "What loading costs: the parser here, or imports and parser in each of several processes."
    start = cpu()
    load_parser(name)
    if processes > 1:
        program = f"from hypvl.papers.syntax.parsers import load_parser; load_parser({name!r})"
        for _ in range(processes):
            subprocess.run([sys.executable, "-c", program], check=True)
    return cpu() - start


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parser", default="small", help="package or folder of a pipeline; 'small' trains one"
    )
    parser.add_argument(
        "--captions", type=Path, help="JSON in COCO's layout; without it captions of the world"
    )
    parser.add_argument(
        "--count", type=int, default=4000, help="captions; a short file is repeated"
    )
    parser.add_argument("--shard", type=int, default=2000, help="captions a shard")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if args.captions:
        texts = [a["caption"] for a in json.loads(args.captions.read_text())["annotations"]]
    else:
        texts = [p.text for p in world_parses(args.count)]
    texts = (texts * (args.count // len(texts) + 1))[: args.count]
    clean = [clean_text(t) for t in texts]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        name = train_small(folder / "small") if args.parser == "small" else args.parser
        write_shards(folder, texts, args.shard)
        nlp, best = load_parser(name), {"bare nlp.pipe": float("inf"), "parse_shards": float("inf")}
        for _ in range(args.repeats):
            start = cpu()
            for _ in nlp.pipe(clean, batch_size=args.batch_size, n_process=args.processes):
                pass
            best["bare nlp.pipe"] = min(best["bare nlp.pipe"], cpu() - start)
            start = cpu()
            parse_shards(
                folder, name, n_process=args.processes, batch_size=args.batch_size, progress=False
            )
            best["parse_shards"] = min(best["parse_shards"], cpu() - start)
            stored = [sidecar(p) for p in folder.glob("*.tar")]
            size = sum(p.stat().st_size for p in stored) / len(texts)
            for path in stored:
                path.unlink()
        load = start_up(name, args.processes)
    words = sum(len(text.split()) for text in clean) / len(clean)
    print(f"{parser_identity(nlp)}; {len(texts)} captions of {words:.1f} words,")
    print(f"{args.processes} process(es), {size:.0f} bytes a caption\n")
    print("| | captions/s | of bare |\n|---|---:|---:|")
    rows = {**best, "parse_shards without the start": best["parse_shards"] - load}
    for what, seconds in rows.items():
        print(f"| {what} | {len(texts) / seconds:.0f} | {best['bare nlp.pipe'] / seconds:.2f} |")


if __name__ == "__main__":
    main()
