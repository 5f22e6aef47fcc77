# autopar: non-recursive; `make help` lists the targets.
PREFIX ?= /usr/local
DESTDIR ?=
BUILD ?= build
CC = gcc
CFLAGS ?= -O2 -g
WARN = -Wall -Wextra -Wshadow -Wcast-qual -Wstrict-prototypes -Wmissing-prototypes -Wvla \
    -Werror
AP_CPPFLAGS = -D_POSIX_C_SOURCE=200809L -Ilibcommon $(CPPFLAGS)
AP_CFLAGS = -std=c11 $(WARN) $(CFLAGS) $(SANITIZE)
AP_LDFLAGS = -Wl,--as-needed $(LDFLAGS) $(SANITIZE)
LIB_LIBS = -lglpk -ljansson -lz -lm -pthread

# ap-exec is the one tool that needs MPI and a BLAS; without them the others are built.
MPI := $(shell pkg-config --exists ompi-c openblas 2>/dev/null && echo yes)
INC_ap-exec := $(if $(MPI),$(shell pkg-config --cflags ompi-c openblas))
LIBS_ap-exec := $(if $(MPI),$(shell pkg-config --libs ompi-c openblas) -ldl)
# Fourier transforms are FFTW's; without it ap-exec refuses them.
ifneq ($(shell pkg-config --exists fftw3 2>/dev/null && echo yes),)
INC_ap-exec += -DAP_FFTW $(shell pkg-config --cflags fftw3)
LIBS_ap-exec += $(shell pkg-config --libs fftw3)
endif
# Programs of the wheel have all libraries linked into them but glibc and MPI's; what is installed
# beside lib/autopar, by pip say, is found before the system's.
BUNDLED = glpk colamd amd suitesparseconfig gmp ltdl jansson z $(if $(MPI),openblas gfortran quadmath $(if $(findstring AP_FFTW,$(INC_ap-exec)),fftw3))
WHEEL_LIBS = -s -static-libgcc -Wl,--exclude-libs,ALL -Wl,-Bstatic $(BUNDLED:%=-l%) -Wl,-Bdynamic -ldl -lm -pthread
WHEEL_LIBS_ap-exec := $(if $(MPI),$(shell pkg-config --libs ompi-c)) -Wl,-rpath,'$$ORIGIN/..'
# Kernels: vectorised, but an element's bits must not depend on where it lies.
CFLAGS_ap-exec = $(if $(SANITIZE),,-O3) -ffp-contract=off -fno-math-errno \
    -fno-trapping-math -fno-strict-aliasing $(if $(filter x86_64,$(shell uname -m)),-mprefer-vector-width=512)

# The CUDA backend is a library that ap-exec opens; `make cuda` builds it where the toolkit is, or what
# scripts/deps --cuda installs.
CUDA ?= $(firstword $(patsubst %/include/nvrtc.h,%,$(wildcard /usr/local/cuda/include/nvrtc.h \
    $(CURDIR)/build/cuda/include/nvrtc.h)) /usr/local/cuda)
HAS_CUDA := $(if $(MPI),$(if $(wildcard $(CUDA)/include/nvrtc.h),yes))
CUDA_LINT = $(if $(HAS_CUDA),-Icmd/ap-exec/cuda -isystem $(CUDA)/include -D_DEFAULT_SOURCE -DFAKE_TOP='""')
CUDA_LIB = $(firstword $(wildcard $(CUDA)/lib64) $(CUDA)/lib)
CUDA_LIBS = -L$(CUDA_LIB) -Wl,-rpath,$(abspath $(CUDA_LIB)) -lcudart -lcublasLt -lnvrtc -lnccl

TOOLS := $(patsubst cmd/%/,%,$(dir $(foreach d,$(wildcard cmd/ap-*),$(wildcard $d/$(notdir $d).c))))
ifeq ($(MPI),)
TOOLS := $(filter-out ap-exec,$(TOOLS))
endif
LIB := $(BUILD)/libcommon.a
CLUSTERS := $(sort $(wildcard clusters/*.json)) $(sort $(wildcard clusters/papers/*.json))
LIB_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard libcommon/*/*.c libcommon/*/*/*.c)) $(BUILD)/presets.o
# Tools that are scripts over the others.
SCRIPT_TOOLS := ap-plan
BINS := $(TOOLS:%=$(BUILD)/bin/%) $(SCRIPT_TOOLS:%=$(BUILD)/bin/%)
# tests/unit/ap-<tool>/test_<tool>_*.c test what is in cmd/ap-<tool>, all others a room of libcommon
TEST_FILES := $(wildcard tests/unit/*/test_*.c)
TESTS := $(basename $(notdir $(TEST_FILES)))
ifeq ($(MPI),)
TESTS := $(filter-out test_exec_%,$(TESTS))
endif
UNIT := $(TESTS:%=$(BUILD)/unit/%)
EQUIV := $(if $(MPI),$(BUILD)/equiv/test_equiv)
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
C_FILES := $(wildcard libcommon/*/*.[ch] libcommon/*/*/*.[ch] cmd/*/*.[ch] cmd/*/*/*.[ch] tests/unit/*.h $(TEST_FILES) tests/equiv/*.[ch] tests/fuzz/*.[ch])
SCRIPTS := $(filter-out %.md,$(wildcard .ci/run scripts/* scripts/wheel/* scripts/bench/* scripts/experiments/* tests/*.bash tests/trainers/plans tests/trainers/check))
SCRIPTS := $(shell grep -lE '^\#! ?/(usr/)?bin/(env )?(ba)?sh|shellcheck shell=' $(SCRIPTS) /dev/null 2>/dev/null)
BATS := $(wildcard tests/*.bats)
MAN := $(wildcard man/*.[157])

ASAN = BUILD=$(BUILD)/asan CFLAGS="-Og -g1 -fno-omit-frame-pointer" \
    SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=all"
FUZZ = BUILD=$(BUILD)/fuzz CC=clang CFLAGS="-O1 -g" \
    SANITIZE="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all"
FUZZ_SECONDS ?= 60

.PHONY: all unit asan check test check-asan check-config check-jax check-torch check-trainers lint lint-format lint-house lint-scripts lint-man \
    lint-headers lint-tidy format bench cuda install wheel gallery site ablation uninstall fuzz fuzzers clean help without-mpi without-cuda
.DELETE_ON_ERROR:
.SECONDARY:

all: $(BINS) $(if $(MPI),,without-mpi) ## build the tools (release, warnings as errors)

without-mpi:
	@echo 'no OpenMPI and OpenBLAS (pkg-config ompi-c openblas): ap-exec is not built' >&2

unit: $(UNIT) $(EQUIV) ## build the C unit tests

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(AP_CPPFLAGS) $(INC) $(AP_CFLAGS) $(TOOL_CFLAGS) -MMD -MP -c -o $@ $<

# The clusters that tools know by name: their files as strings.
$(BUILD)/presets.c: $(CLUSTERS) clusters clusters/papers Makefile
	@mkdir -p $(@D)
	{ printf '#include "cost/cost.h"\n\nconst struct ap_preset ap_presets[] = {\n'; \
	    for f in $(CLUSTERS); do printf '{"%s",\n' "$$(basename $$f .json)"; \
	        sed 's/[\\"]/\\&/g; s/.*/"&\\n"/' $$f; echo '},'; done; \
	    printf '{0}};\n'; } >$@
$(BUILD)/page_text.o: $(BUILD)/page_text.c
$(BUILD)/presets.o: $(BUILD)/presets.c libcommon/cost/cost.h
$(BUILD)/page_text.o $(BUILD)/presets.o $(BUILD)/model_types.o $(BUILD)/check_schemas.o:
	$(CC) $(AP_CPPFLAGS) $(AP_CFLAGS) -MMD -MP -c -o $@ $<

# The page of ap-cost --html: the template as strings, in front of the line @DATA@ and behind.
$(BUILD)/page_text.c: cmd/ap-cost/html/page.html Makefile
	@mkdir -p $(@D)
	{ printf 'extern const char page_head[], page_tail[];\nconst char page_head[] =\n'; \
	    sed '/^@DATA@$$/,$$d; s/[\\"]/\\&/g; s/?/\\?/g; s/.*/"&\\n"/' $<; printf ';\nconst char page_tail[] =\n'; \
	    sed '1,/^@DATA@$$/d; s/[\\"]/\\&/g; s/?/\\?/g; s/.*/"&\\n"/' $<; printf ';\n'; } >$@
EXTRA_ap-cost = $(BUILD)/page_text.o

# The model_types of ap-model --config, and the config.json that it knows by name, as strings.
CONFIGS := $(sort $(wildcard cmd/ap-model/configs/*.json))
$(BUILD)/model_types.c: cmd/ap-model/types.json $(CONFIGS) cmd/ap-model/configs Makefile
	@mkdir -p $(@D)
	quote() { sed 's/[\\"]/\\&/g; s/.*/"&\\n"/' $$1; }; \
	{ printf 'extern const char model_types_text[], model_configs_text[];\nconst char model_types_text[] =\n'; \
	    quote $<; printf ';\nconst char model_configs_text[] = "{"\n'; \
	    for f in $(CONFIGS); do printf '"\\"%s\\":"\n' "$$(basename $$f .json)"; quote $$f; \
	        [ $$f = $(lastword $(CONFIGS)) ] || echo '","'; done; echo '"}";'; } >$@
$(BUILD)/model_types.o: $(BUILD)/model_types.c
EXTRA_ap-model = $(BUILD)/model_types.o

# The schemas, as one string: an object of files.
$(BUILD)/check_schemas.c: $(wildcard schemas/*.json) schemas Makefile
	@mkdir -p $(@D)
	{ printf 'extern const char check_schemas_text[];\nconst char check_schemas_text[] = "{"\n'; \
	    for f in $(sort $(filter %.json,$^)); do printf '"\\"%s\\":"\n' "$$(basename $$f)"; sed 's/[\\"]/\\&/g; s/?/\\?/g; s/.*/"&\\n"/' $$f; \
	        [ $$f = $(lastword $(sort $(wildcard schemas/*.json))) ] || echo '","'; done; echo '"}";'; } >$@
$(BUILD)/check_schemas.o: $(BUILD)/check_schemas.c
EXTRA_ap-check = $(BUILD)/check_schemas.o

# Message passing and answers: loops worth vectorising.
$(BUILD)/libcommon/solve/solve_dual.o: TOOL_CFLAGS = $(if $(SANITIZE),,-O3)
CFLAGS_ap-solve = $(if $(SANITIZE),,-O3)

$(LIB): $(LIB_OBJ)
	rm -f $@
	ar rcs $@ $^

# Objects of a tool, with and without its main.
objects = $(patsubst %.c,$(BUILD)/%.o,$(filter-out cmd/ap-exec/cuda/%,$(wildcard cmd/$(1)/*.c cmd/$(1)/*/*.c)))
parts = $(filter-out %/$(1).o,$(call objects,$(1)))
# Tools that call another tool's code.
LIBRARIES_ap-stage = ap-shard
libraries = $(foreach t,$(LIBRARIES_$(1)),$(call parts,$(t)))
# Which tool a test is about: said here, or seen from its name.
TOOL_fuzz_hlo = ap-import
TOOL_fuzz_onnx = ap-import
TOOL_fuzz_answer = ap-stage
TOOL_fuzz_config = ap-model
TOOL_fuzz_roles = ap-import
TOOL_fuzz_serve = ap-shard
TOOL_fuzz_problem = ap-solve
tool_of = $(or $(TOOL_$(1)),$(firstword $(foreach t,$(TOOLS),$(if $(filter $(2)_$(t:ap-%=%)_%,$(1)),$(t)))))

# The CUDA backend takes functions of the program that opens it; this one nobody else there calls.
LDFLAGS_ap-exec = -rdynamic -Wl,--undefined=ap_attention_probe

define tool_rules
$(BUILD)/bin/$(1): $(call objects,$(1)) $(EXTRA_$(1)) $(call libraries,$(1)) $(LIB)
	@mkdir -p $$(@D)
	$$(CC) $$(AP_LDFLAGS) $$(LDFLAGS_$(1)) -o $$@ $$^ $$(LIBS_$(1)) $$(LIB_LIBS)
$(BUILD)/wheel/bin/$(1): $(call objects,$(1)) $(EXTRA_$(1)) $(call libraries,$(1)) $(LIB)
	@mkdir -p $$(@D)
	$$(CC) $$(AP_LDFLAGS) $$(LDFLAGS_$(1)) -o $$@ $$^ $$(WHEEL_LIBS_$(1)) $$(WHEEL_LIBS)
$(call objects,$(1)): INC = $$(INC_$(1)) -Icmd/$(1) $(LIBRARIES_$(1):%=-Icmd/%)
$(call objects,$(1)): TOOL_CFLAGS = $$(CFLAGS_$(1))
endef
$(foreach t,$(TOOLS),$(eval $(call tool_rules,$(t))))

# A script is one file: a line "#include FILE" stands for FILE, which lies beside it.
define script_rule
$(1)/$(2): $(wildcard cmd/$(2)/*) Makefile
	@mkdir -p $$(@D)
	awk 'function put(file,    line) { while ((getline line < ("cmd/$(2)/" file)) > 0) \
	    if (line ~ /^#include /) put(substr(line, 10)); else if (line !~ /^# shellcheck shell/) print line } \
	    BEGIN { put("$(2)") }' >$$@ && chmod 755 $$@
endef
$(foreach t,$(SCRIPT_TOOLS),$(foreach d,$(BUILD)/bin $(BUILD)/wheel/bin,$(eval $(call script_rule,$d,$t))))

# The backend's objects, and the library of them over CUDA's own libraries.
CUDA_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard cmd/ap-exec/cuda/*.c)) $(BUILD)/cuda_prelude.o
$(CUDA_OBJ): INC = $(INC_ap-exec) -Icmd/ap-exec -Icmd/ap-exec/cuda -isystem $(CUDA)/include
$(CUDA_OBJ): TOOL_CFLAGS = -fPIC
$(BUILD)/bin/ap_cuda.so: $(CUDA_OBJ)
	@mkdir -p $(@D)
	$(CC) $(AP_LDFLAGS) -shared -o $@ $^ $(CUDA_LIBS)

# What kernels begin with, as strings: integer types, conversions of narrow floats, the prelude;
# and complex numbers.
PRELUDE = libcommon/base/float16.h cmd/ap-exec/cuda/prelude.cu
COMPLEX = cmd/ap-exec/cuda/complex.cu
$(BUILD)/cuda_prelude.c: $(PRELUDE) $(COMPLEX) Makefile
	@mkdir -p $(@D)
	quote() { sed '/^#include/d; s/[\\"]/\\&/g; s/.*/"&\\n"/'; }; \
	{ echo 'extern const char cuda_prelude[], cuda_complex[]; const char cuda_prelude[] ='; \
	    { for t in 'signed char int8_t' 'short int16_t' 'int int32_t' 'long int64_t' 'unsigned char uint8_t' \
	        'unsigned short uint16_t' 'unsigned int uint32_t' 'unsigned long uint64_t'; do echo "typedef $$t;"; done; \
	      cat $(PRELUDE); } | quote; \
	    echo '; const char cuda_complex[] ='; quote <$(COMPLEX); echo ';'; } >$@
$(BUILD)/cuda_prelude.o: $(BUILD)/cuda_prelude.c
	$(CC) $(AP_CPPFLAGS) $(AP_CFLAGS) $(TOOL_CFLAGS) -MMD -MP -c -o $@ $<

cuda: $(if $(HAS_CUDA),all $(BUILD)/bin/ap_cuda.so,without-cuda) ## build ap-exec's CUDA backend; needs the toolkit and NCCL, no GPU

without-cuda:
	@echo 'the CUDA backend is not built: $(if $(MPI),no CUDA toolkit in $(CUDA); scripts/deps --cuda installs one,no MPI)' >&2; exit 1

# 1: program, 2: its folder under tests/, 3: the tool it is about, 4: more flags to link,
# 5: its object
define test_rules
$(BUILD)/$(2)/$(1): $(5) $(if $(3),$(call parts,$(3)) $$(EXTRA_$(3)) $(call libraries,$(3))) $(LIB)
	@mkdir -p $$(@D)
	$$(CC) $$(AP_LDFLAGS) $$(LDFLAGS_$(3)) $(4) -o $$@ $$^ $$(LIBS_$(3)) $$(LIB_LIBS)
$(5): INC = $$(INC_$(3)) $(if $(3),-Icmd/$(3)) $(LIBRARIES_$(3):%=-Icmd/%) -Itests/$(2)
$(5): TOOL_CFLAGS = $$(TEST_CFLAGS)
endef
$(foreach f,$(TEST_FILES),$(foreach t,$(filter $(TESTS),$(basename $(notdir $f))),$(eval \
    $(call test_rules,$(t),unit,$(call tool_of,$(t),test),,$(f:%.c=$(BUILD)/%.o)))))

# Random programs under MPI (tests/equiv.bats).
EQUIV_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/equiv/*.c))
$(BUILD)/equiv/test_equiv: $(EQUIV_OBJ) $(call parts,ap-exec) $(BUILD)/cmd/ap-fuse/kernels.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(AP_LDFLAGS) $(LDFLAGS_ap-exec) -o $@ $^ $(LIBS_ap-exec) $(LIB_LIBS)
$(EQUIV_OBJ): INC = $(INC_ap-exec) -Icmd/ap-exec -Icmd -Itests/equiv
$(EQUIV_OBJ): TOOL_CFLAGS = $(TEST_CFLAGS)

$(foreach t,$(FUZZERS),$(eval $(call test_rules,$(t),fuzz,$(call tool_of,$(t),fuzz),-fsanitize=fuzzer,$(BUILD)/tests/fuzz/$(t).o)))

asan: # everything once more under AddressSanitizer and UBSan, in $(BUILD)/asan
	$(MAKE) --no-print-directory $(ASAN) all unit

check test: all unit ## run all tests
	scripts/tap -b $(BUILD) $(UNIT) $(BATS)

check-jax: all ## run plans in JAX beside plain JAX, with the Python AP_JAX_PYTHON or build/jaxenv
	AP_BUILD=$(BUILD) scripts/jax/roundtrip-table
	AP_JAX_EACH=all scripts/tap -b $(BUILD) tests/jax.bats tests/jax_export.bats
	scripts/jax/environment --packages $(BUILD)/jaxpackages
	$(BUILD)/jaxpackages/bin/python scripts/jax/zoo-table --back --bin $(BUILD)/bin
	$(BUILD)/jaxpackages/bin/python scripts/jax/zoo-table --back --bin $(BUILD)/bin --zoo packages

check-trainers: $(BUILD)/unit/test_trainer ## random lines of trainers: written, read back, read by them (AP_TRAINERS_PYTHON)
	tests/trainers/check $(BUILD)

check-config: all ## ap-model --config beside transformers: parameters and losses, with the Python AP_TORCH_PYTHON
	@python=$${AP_TORCH_PYTHON:-python3}; PATH=$(abspath $(BUILD))/bin:$$PATH; \
	if ! $$python -c 'import torch, transformers' 2>/dev/null; then \
	    echo "check-config: skipped: $$python has no PyTorch and transformers (AP_TORCH_PYTHON)"; \
	else $$python scripts/torch/config-types && $$python scripts/torch/config-loss; fi

check-torch: all ## train PyTorch modules, with the Python AP_TORCH_PYTHON
	scripts/torch/check -b $(BUILD) readme
	$${AP_TORCH_PYTHON:-python3} tests/torch_rules.py
	$${AP_TORCH_PYTHON:-python3} scripts/torch/zoo-table --back --bin $(BUILD)/bin
	scripts/torch/environment $(BUILD)/torchpackages
	PYTHONPATH=$(BUILD)/torchpackages $${AP_TORCH_PYTHON:-python3} scripts/torch/zoo-table --back --bin $(BUILD)/bin --zoo packages
	scripts/tap -b $(BUILD) tests/torch_out.bats tests/torch_stages.bats tests/plan_call.bats

check-asan: asan ## run all tests under AddressSanitizer and UBSan
	AP_TEST_ASAN=all scripts/tap -b $(BUILD)/asan $(TESTS:%=$(BUILD)/asan/unit/%) $(BATS)

fuzzers: $(FUZZERS:%=$(BUILD)/fuzz/%)

fuzz: ## run every fuzz target for FUZZ_SECONDS (60) under ASan and UBSan; needs clang
	$(MAKE) --no-print-directory $(FUZZ) fuzzers
	scripts/fuzz $(BUILD)/fuzz $(FUZZ_SECONDS) $(FUZZERS)

lint: lint-format lint-house lint-scripts lint-man lint-headers lint-tidy ## check format, rooms, scripts, man pages, headers; clang-tidy

lint-format:
	clang-format --dry-run -Werror $(C_FILES)

# Rooms and their order, prints, tags, tested options, documented algorithms, words.
lint-house: all ## the part of lint that knows the layout of the source; takes seconds
	scripts/lint-house -b $(BUILD)

lint-scripts: $(SCRIPT_TOOLS:%=$(BUILD)/bin/%)
	shellcheck $(SCRIPTS) $^
	shellcheck -s bash -e SC1091,SC2001,SC2016,SC2030,SC2031,SC2046,SC2086,SC2116,SC2154 $(BATS)

lint-man:
	mandoc -T lint -W warning $(MAN)

# Every header compiles alone, and no file is too long to find one's way in.
lint-headers:
	@for f in $(filter %.h,$(C_FILES)); do \
	    $(CC) $(AP_CPPFLAGS) $(AP_CFLAGS) $(INC_ap-exec) $(TOOLS:%=-Icmd/%) -Itests/unit \
	        $(CUDA_LINT) -Wno-unused -fsyntax-only -x c $$f || exit 1; done
	@wc -l $(C_FILES) | awk '$$2 != "total" && $$1 > 800 \
	    { print $$2 ": " $$1 " lines, at most 800"; bad = 1 } END { exit bad }'

lint-tidy:
	printf '%s\n' $(filter %.c,$(C_FILES)) | xargs -P 2 -n 4 sh -c 'clang-tidy --quiet "$$@" \
	    -- -std=c11 $(AP_CPPFLAGS) $(INC_ap-exec) $(TOOLS:%=-Icmd/%) -Itests/unit $(CUDA_LINT) 2>&1 | \
	    grep -vE "warnings? generated|^Suppressed|^Use -header" | (! grep .)' lint

format: ## lay out the C files by .clang-format
	clang-format -i $(C_FILES)

bench: all ## measure the planning pipe on GPT-2 124M and on growing GPTs
	AP_BUILD=$(BUILD) scripts/bench/run
	AP_BUILD=$(BUILD) scripts/bench/import
	AP_BUILD=$(BUILD) scripts/bench/curve
	AP_BUILD=$(BUILD) scripts/bench/blocks
	AP_BUILD=$(BUILD) scripts/bench/tap
	AP_BUILD=$(BUILD) scripts/bench/pipe72
	AP_BUILD=$(BUILD) scripts/bench/rhino
	AP_BUILD=$(BUILD) scripts/bench/stage
	AP_BUILD=$(BUILD) scripts/bench/devices

SHARE = $(DESTDIR)$(PREFIX)/share
BASH_COMPLETION = $(SHARE)/bash-completion/completions
ZSH_COMPLETION = $(SHARE)/zsh/site-functions
SCHEMAS := $(wildcard schemas/*.json)
PYTHON := $(wildcard python/autopar/*.py python/autopar/torch/*.py) python/autopar/ops.def
VERSION := $(shell sed -n 's/^.define AP_VERSION "\(.*\)"/\1/p' libcommon/tool/tool.h)
install: all ## install below PREFIX (/usr/local); DESTDIR is put in front
	install -d $(DESTDIR)$(PREFIX)/bin $(SHARE)/autopar/clusters/papers $(SHARE)/autopar/schemas \
	    $(SHARE)/autopar/python/autopar/torch $(SHARE)/pkgconfig $(BASH_COMPLETION) $(ZSH_COMPLETION)
	install -m 755 $(BINS) $(DESTDIR)$(PREFIX)/bin
	if [ -e $(BUILD)/bin/ap_cuda.so ]; then install -d $(DESTDIR)$(PREFIX)/lib/autopar && \
	    install -m 755 $(BUILD)/bin/ap_cuda.so $(DESTDIR)$(PREFIX)/lib/autopar; fi
	install -m 644 $(wildcard clusters/*.json) $(SHARE)/autopar/clusters
	install -m 644 $(wildcard clusters/papers/*.json) $(SHARE)/autopar/clusters/papers
	install -m 644 $(SCHEMAS) $(SHARE)/autopar/schemas
	for f in $(PYTHON); do install -m 644 $$f $(SHARE)/autopar/$$f || exit 1; done
	for s in 1 5 7; do install -d $(SHARE)/man/man$$s && \
	    install -m 644 man/*.$$s $(SHARE)/man/man$$s || exit 1; done
	for t in $(TOOLS) $(SCRIPT_TOOLS); do $(BUILD)/bin/$$t --completion bash >$(BASH_COMPLETION)/$$t && \
	    $(BUILD)/bin/$$t --completion zsh >$(ZSH_COMPLETION)/_$$t || exit 1; done
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' scripts/autopar.pc.in >$(SHARE)/pkgconfig/autopar.pc

uninstall: ## remove what install put below PREFIX and DESTDIR
	rm -f $(DESTDIR)$(PREFIX)/lib/autopar/ap_cuda.so
	[ ! -d $(DESTDIR)$(PREFIX)/lib/autopar ] || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/lib/autopar
	rm -f $(TOOLS:%=$(DESTDIR)$(PREFIX)/bin/%) $(TOOLS:%=$(BASH_COMPLETION)/%) \
	    $(TOOLS:%=$(ZSH_COMPLETION)/_%) $(SCRIPT_TOOLS:%=$(DESTDIR)$(PREFIX)/bin/%) \
	    $(SCRIPT_TOOLS:%=$(BASH_COMPLETION)/%) $(SCRIPT_TOOLS:%=$(ZSH_COMPLETION)/_%) $(SHARE)/pkgconfig/autopar.pc \
	    $(addprefix $(SHARE)/autopar/,$(CLUSTERS) $(SCHEMAS)) \
	    $(PYTHON:%=$(SHARE)/autopar/%) \
	    $(foreach s,1 5 7,$(patsubst man/%,$(SHARE)/man/man$s/%,$(wildcard man/*.$s)))
	for d in autopar/clusters/papers autopar/clusters autopar/schemas autopar/python/autopar/torch autopar/python/autopar autopar/python autopar; do [ ! -d $(SHARE)/$$d ] || \
	    rmdir --ignore-fail-on-non-empty $(SHARE)/$$d || exit 1; done

wheel: $(TOOLS:%=$(BUILD)/wheel/bin/%) $(SCRIPT_TOOLS:%=$(BUILD)/wheel/bin/%) ## make a wheel for other machines, in BUILD/dist: tools and the Python package
	scripts/wheel/make_wheel.py --build $(BUILD) --bundled '$(BUNDLED)' --out $(BUILD)/dist

ablation: all ## models x blocks x stages x shards x cost models, your own filters among them: a table and a plot
	+@$(MAKE) --no-print-directory -C scripts/experiments ablation

gallery: all ## plan some models on some clusters: pages and an index in BUILD/gallery
	scripts/gallery -b $(BUILD)

site: ## make the documentation a site of static pages in BUILD/site, with the gallery where it was made; check its links
	scripts/site -b $(BUILD)

clean: ## remove what was built
	rm -rf $(BUILD)

help: ## list the targets
	@sed -n 's/^\([a-z -]*\):.*## \(.*\)/\1\t\2/p' Makefile tests/fakecuda/rules.mk | expand -t 14

-include $(patsubst %.o,%.d,$(LIB_OBJ) $(patsubst %.c,$(BUILD)/%.o,$(wildcard cmd/*/*.c cmd/*/*/*.c)) \
    $(TEST_FILES:%.c=$(BUILD)/%.o) $(EQUIV_OBJ) $(FUZZERS:%=$(BUILD)/tests/fuzz/%.o))

include tests/fakecuda/rules.mk
