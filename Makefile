# Two commands: `make phyclip` and `make test`. `make help` lists all.
PRESET   ?= mini
SECTIONS ?= main
OUT      ?= runs/$@-$(PRESET)
PYTHON   ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN      := .venv/bin
TREE      = cat $$(find hypvl -name '*.py' | sort) $$(find nbs papers_repro -name '*.ipynb' -not -path '*/.*' | sort) | sha256sum

# what the cells print and nothing else: no echo of cells, no representations of results
LOG      := --no-progress-bar --log-level WARNING --stdout-file - --stderr-file -
# glibc keeps the large tensors of a step instead of asking for them again: 5 to 10 % of it
export MALLOC_MMAP_THRESHOLD_ := 134217728
export MALLOC_TRIM_THRESHOLD_ := 1073741824

MODEL    ?= phyclip_world

.PHONY: help phyclip syntax hierarchies h2em agr ideas backbone explore test quick export where site lab clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13
	@echo "variables: PRESET=smoke|mini|gpu|paper  SECTIONS=main|all  OUT=folder  PYTHON=interpreter"

.venv/.installed: settings.ini setup.py constraints.txt
	@echo "installing 7 GB of packages into .venv: 3 to 10 minutes, once"
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --progress-bar on --disable-pip-version-check --no-compile -e '.[dev]' -c constraints.txt
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -c "import hypvl.papers.ideas.paper"  # compiles what is used, a fifth
	@touch $@

phyclip:  ## train CLIP, MERU, HyCoCLIP and PHyCLIP on the synthetic dataset, one seed; render tables, figures and claims
syntax:  ## train MERU with and without the syntax loss, one seed; render tables, figures and claims
hierarchies:  ## fine-tune CLIP's image tower on scenes and objects, three seeds; render tables, figures and claims
hierarchies: NOTEBOOK = visual_hierarchies
h2em:  ## name unseen pairs of states and shapes with H²EM and its controls, three seeds; render tables, figures and claims
agr:  ## train heads of two geometries and a router on a frozen encoder, beside controls, three seeds; render tables, figures and claims
ideas:  ## fine-tune one trained model by the ideas of all five papers, three seeds; an hour to an hour and a half
ideas: SECTIONS = main,longer
NOTEBOOK  = $@
phyclip syntax hierarchies h2em agr ideas: .venv/.installed
	@mkdir -p "$(OUT)"
	$(BIN)/papermill papers_repro/$(NOTEBOOK).ipynb "$(OUT)/$(NOTEBOOK).ipynb" $(LOG) \
		-p preset $(PRESET) -p sections $(SECTIONS) -p out "$(OUT)"
	@echo && cat "$(OUT)/tables/scores.md"
	@echo && cat "$(OUT)/tables/primary_claims.md"
	@echo && printf '| %-19s | %s |\n' "what" "where" "-------------------" "-----" \
		"executed notebook" "$(OUT)/$(NOTEBOOK).ipynb" "tables and claims" "$(OUT)/tables" \
		"figures" "$(OUT)/figures" "scores, per row" "$(OUT)/results.csv" \
		"values, per item" "$(OUT)/items.parquet"

backbone: .venv/.installed  ## train a shipped model again, MODEL=phyclip_world|clip_world|clip_states; an interrupted training is resumed
	OMP_NUM_THREADS=1 nice $(BIN)/python -c "from hypvl.papers.backbone import train_backbone; train_backbone('$(MODEL)')"

RUN      ?=
IMAGES   ?=

explore: .venv/.installed  ## look at what a model finds, in a browser; RUN=folder of a model, IMAGES=folder of photographs
	$(BIN)/hypvl explore $(if $(RUN),--run "$(RUN)") $(if $(IMAGES),--images "$(IMAGES)")

export: .venv/.installed  ## write hypvl/ and papers_repro/WHERE.md from the notebooks, and clean their metadata
	$(BIN)/nbdev_export
	$(BIN)/nbdev_clean --fname nbs
	$(BIN)/nbdev_clean --fname papers_repro
	$(BIN)/python website/where.py

where: .venv/.installed  ## write papers_repro/WHERE.md: the cell of each equation, table and figure
	$(BIN)/python website/where.py

BASE     ?= main

quick: .venv/.installed  ## two minutes, before a commit: format, lint, types, clean export, notebooks changed since BASE
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	@before=$$($(TREE)); $(MAKE) --no-print-directory export || exit 1; \
		test "$$before" = "$$($(TREE))" || echo "'make export' has written hypvl/: commit it with the notebooks"
	@git rev-parse --quiet --verify $(BASE) > /dev/null || { echo "BASE=$(BASE): no such branch or commit"; exit 1; }
	@for notebook in $$({ git diff --name-only --diff-filter=d $(BASE) -- nbs; \
			git ls-files --others --exclude-standard -- nbs; } | grep 'ipynb$$'); do \
		OMP_NUM_THREADS=1 $(BIN)/nbdev_test --path $$notebook --do_print --pause 0 || exit 1; done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest papers_repro/tests/test_repository.py papers_repro/tests/test_vocabulary.py -q

test: export PYTHONDONTWRITEBYTECODE =  # processes of the tests share compiled modules
test: .venv/.installed  ## formatter, linter, types, clean export, then nbdev_test, pytest and the smoke reproductions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --threads 2
	@before=$$($(TREE)); $(MAKE) --no-print-directory export && \
		test "$$before" = "$$($(TREE))" || { echo "hypvl/ or a notebook was not up to date: 'make export' has changed it, look at git diff"; exit 1; }
	OMP_NUM_THREADS=1 $(BIN)/nbdev_test --n_workers 2 --do_print --pause 0
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest papers_repro/tests -q -n 3 --dist loadfile --no-loadscope-reorder

.venv/.site: settings.ini setup.py constraints.txt
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[site]' -c constraints.txt
	@touch $@

site: .venv/.site  ## render notebooks, results and the API to static pages in _docs, links and search checked; some minutes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file website/mkdocs.yml
	$(BIN)/python website/check_search.py
	@echo "pages  _docs/index.html; to search them: $(BIN)/python -m http.server --directory _docs"

lab: .venv/.installed  ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) nbs/index.ipynb

clean:  ## delete the virtual environment and all runs
	rm -rf .venv runs
