# The CUDA functions on the host (README.md), and the backend on top of them. Needs the
# toolkit's headers and MPI.
CUDA ?= /usr/local/cuda
FAKE_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/fakecuda/fake_*.c))
FAKE_TEST := $(BUILD)/fake/test_fake
HAS_FAKE := $(if $(MPI),$(wildcard $(CUDA)/include/cuda_runtime_api.h))
FAKE_LIBS = -shared-libgcc $(LIBS_ap-exec)

$(FAKE_OBJ) $(BUILD)/tests/fakecuda/test_fake.o: INC = $(INC_ap-exec) -isystem $(CUDA)/include -Itests/fakecuda \
    -D_DEFAULT_SOURCE -DFAKE_TOP='"$(CURDIR)"'
$(FAKE_OBJ): TOOL_CFLAGS = -fPIC -ffp-contract=off

$(FAKE_TEST): $(FAKE_OBJ) $(BUILD)/tests/fakecuda/test_fake.o
	@mkdir -p $(@D)
	$(CC) $(AP_LDFLAGS) -rdynamic -o $@ $^ $(LIBS_ap-exec) -lm

-include $(FAKE_OBJ:.o=.d) $(BUILD)/tests/fakecuda/test_fake.d
