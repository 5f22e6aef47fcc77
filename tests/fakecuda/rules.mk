# The CUDA functions on the host (README.md), and the backend on top of them. Needs the
# toolkit's headers and MPI.
FAKE_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/fakecuda/fake_*.c))
FAKE_TESTS := $(BUILD)/fake/test_fake $(BUILD)/fake/test_nccl $(BUILD)/fake/test_sdpa
FAKE := $(if $(HAS_CUDA),$(FAKE_TESTS) $(BUILD)/fake/ap_cuda.so)

$(FAKE_OBJ) $(FAKE_TESTS:$(BUILD)/fake/%=$(BUILD)/tests/fakecuda/%.o): \
    INC = $(INC_ap-exec) -isystem $(CUDA)/include -Itests/fakecuda -Icmd/ap-exec \
    -Icmd/ap-exec/cuda \
    -D_DEFAULT_SOURCE -DFAKE_TOP='"$(CURDIR)"'
$(FAKE_OBJ): TOOL_CFLAGS = -fPIC -ffp-contract=off

$(BUILD)/fake/ap_cuda.so: $(CUDA_OBJ) $(FAKE_OBJ)
	@mkdir -p $(@D)
	$(CC) $(AP_LDFLAGS) -shared -Wl,--wrap=dlopen -o $@ $^ $(LIBS_ap-exec) -lm

$(BUILD)/fake/test_fake: $(BUILD)/tests/fakecuda/test_fake.o $(FAKE_OBJ)
	@mkdir -p $(@D)
	$(CC) $(AP_LDFLAGS) -Wl,--wrap=dlopen -o $@ $^ $(LIBS_ap-exec) -lm

$(BUILD)/fake/test_nccl: $(BUILD)/tests/fakecuda/test_nccl.o $(FAKE_OBJ) \
    $(BUILD)/cmd/ap-exec/cuda/comm_nccl.o $(BUILD)/cmd/ap-exec/cuda/device.o \
    $(call parts,ap-exec) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(AP_LDFLAGS) -Wl,--wrap=dlopen -o $@ $^ $(LIBS_ap-exec) $(LIB_LIBS)

# without the fake: the cuDNN that is installed
$(BUILD)/fake/test_sdpa: $(BUILD)/tests/fakecuda/test_sdpa.o $(BUILD)/cmd/ap-exec/cuda/sdpa.o \
    $(BUILD)/cmd/ap-exec/cuda/cudnn_graph.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(AP_LDFLAGS) -o $@ $^ $(LIB_LIBS) -ldl

unit: $(FAKE)
cuda: $(filter %.so,$(FAKE))

check-fake: all unit $(if $(HAS_CUDA),cuda) ## all golden models and 300 random programs through the CUDA backend, without a GPU
	AP_FAKE_ALL=1 AP_FAKE_CASES=75 AP_FAKE_LIMIT=7200 AP_TEST_TIMEOUT=21600 scripts/tap -b $(BUILD) tests/cuda.bats

check-cuda: all $(EQUIV) $(if $(HAS_CUDA),cuda) ## the CUDA backend on the GPU against the CPU; skips where there is none
	scripts/bench/check-cuda $(BUILD)

.PHONY: check-fake check-cuda
C_FILES += $(if $(HAS_CUDA),$(wildcard tests/fakecuda/*.[ch]))

-include $(FAKE_OBJ:.o=.d) $(FAKE_TESTS:$(BUILD)/fake/%=$(BUILD)/tests/fakecuda/%.d)
