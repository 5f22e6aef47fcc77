# autopar: non-recursive; `make help` lists the targets.
PREFIX ?= /usr/local
DESTDIR ?=
CC = gcc
BUILD ?= build
OPT ?= -O2 -g
WARN = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror
CPPFLAGS += -D_POSIX_C_SOURCE=200809L -Ilibcommon
CFLAGS += -std=c11 $(OPT) $(WARN) $(SANITIZE)
LDFLAGS += $(SANITIZE)
LIB_LIBS = -ljansson -lz -lm

TOOLS := $(notdir $(wildcard cmd/ap-*))
LIB_SRC := $(wildcard libcommon/*.c)
LIB := $(BUILD)/libcommon.a
BINS := $(TOOLS:%=$(BUILD)/bin/%)
UNIT := $(patsubst tests/unit/%.c,$(BUILD)/unit/%,$(wildcard tests/unit/test_*.c))

# What single tools and tests need beyond libcommon.
LIBS_ap-shard = -lglpk
INC_ap-exec := $(shell pkg-config --cflags ompi-c openblas 2>/dev/null)
LIBS_ap-exec := $(shell pkg-config --libs ompi-c openblas 2>/dev/null) -ldl

.PHONY: all unit clean help
all: $(BINS) ## build the tools (release, warnings as errors)

unit: $(UNIT) ## build the C unit tests

$(LIB): $(LIB_SRC:%.c=$(BUILD)/%.o)
	rm -f $@
	ar rcs $@ $^

define tool_rules
$(BUILD)/bin/$(1): $(patsubst %.c,$(BUILD)/%.o,$(wildcard cmd/$(1)/*.c)) $(LIB)
	@mkdir -p $$(@D)
	$$(CC) $$(LDFLAGS) -o $$@ $$^ $$(LIBS_$(1)) $$(LIB_LIBS)
$(patsubst %.c,$(BUILD)/%.o,$(wildcard cmd/$(1)/*.c)): CPPFLAGS += $$(INC_$(1)) -Icmd/$(1)
endef
$(foreach t,$(TOOLS),$(eval $(call tool_rules,$(t))))

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/unit/%: tests/unit/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -o $@ $< $(UNIT_OBJ_$*) $(LIB) $(UNIT_LIBS_$*) $(LIB_LIBS)

clean: ## remove what was built
	rm -rf $(BUILD)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
