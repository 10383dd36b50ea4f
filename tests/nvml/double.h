/* A double of libnvidia-ml.so.1 for tests: what the two halves share. See README.md. */
#ifndef AERIE_NVML_DOUBLE_H
#define AERIE_NVML_DOUBLE_H

#include <stddef.h>
#include <sys/types.h>

#define MAX_GPUS 32
#define MAX_MIGS 64
#define MAX_HOLDERS 128
#define MAX_TRACKED 1024
#define TEXT 128
#define PATH_TEXT 512
#define NO_INSTANCE 0xFFFFFFFFu /* gpuInstanceId of a process outside MIG */

/* nvmlReturn_t, the values that this double gives. */
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
};

enum kind { COMPUTE, GRAPHICS, MPS };
enum source { SOURCE_PID, SOURCE_CGROUP, SOURCE_ALWAYS };
enum lost { LOST_NO, LOST_FROM_HANDLE, LOST_LATE };

struct gpu {
    char uuid[TEXT], name[TEXT], serial[TEXT], pci[TEXT];
    unsigned long long total, reserved;
    unsigned long long ecc_corrected, ecc_uncorrected;
    unsigned remap_corrected, remap_uncorrected, remap_pending, remap_failed;
    unsigned nvlinks, nvlinks_down, cc_major, cc_minor;
    int ecc, numa, fabric_state, fabric_status;
    int mig;         /* MIG mode: 1 on, 0 off, -1 the part has no MIG */
    int handle;      /* nvmlReturn_t of opening it by index or UUID */
    int memory;      /* nvmlReturn_t of memory info */
    int processes;   /* nvmlReturn_t of the process lists */
    enum lost lost;
};

struct mig {
    int gpu, index;
    char uuid[TEXT], name[TEXT];
    unsigned gi, ci;
    unsigned long long total, reserved;
    int memory;
};

struct holder {
    char id[TEXT], match[TEXT], cgroup[PATH_TEXT];
    int gpu, mig; /* mig: index of the instance on that GPU, -1 for none */
    enum kind kind;
    enum source source;
    pid_t pid;
    unsigned long long bytes, overhead; /* of each process; overhead: used, but attributed to no process */
    int listed, attributed, listed_after_death;
    long long free_ms; /* milliseconds from death to free; -1: never */
};

struct tracked { /* one process that a holder had; written to <scenario>.state */
    char id[TEXT];
    pid_t pid;
    unsigned long long start; /* field 22 of /proc/<pid>/stat; 0: dead when first looked at */
    long long died_ms;        /* CLOCK_REALTIME; 0: alive */
};

struct scenario {
    char driver[TEXT], nvml[TEXT];
    int cuda, init, memory_v2;
    int topology; /* nvmlGpuTopologyLevel_t between any two GPUs */
    struct gpu gpus[MAX_GPUS];
    int gpu_count;
    struct mig migs[MAX_MIGS];
    int mig_count;
    struct holder holders[MAX_HOLDERS];
    int holder_count;
};

struct use { /* what one process has on one GPU or MIG instance now */
    const struct holder *holder;
    pid_t pid;
    int dead;
};

#define SCENARIO_MISSING (-1)
#define SCENARIO_BAD (-2) /* a line cannot be read; said on stderr */

/* Reads the scenario file; 0 or one of the above. */
int scenario_load(struct scenario *out);
/* Where the scenario is: AERIE_NVML_SCENARIO, else /etc/aerie-nvml/scenario. */
const char *scenario_path(void);
/* Looks at the processes now, updates the state file; fills `out` with everything that holds memory now. */
int holders_now(const struct scenario *sc, struct use *out, int max);

#endif
