/* The exported functions of the double. Signatures follow NVIDIA's nvml.h; structures follow pynvml 13.615. */
#include "double.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define EXPORT __attribute__((visibility("default")))
#define MEMORY_V2 0x02000028u
#define NOT_AVAILABLE (~0ull)

typedef void *device_t;

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned gi, ci; };
struct pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct fabric { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state;
                unsigned health_mask; unsigned char health_summary; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users; /* nvmlInit without nvmlShutdown */
static struct scenario sc;
static struct use uses[MAX_TRACKED];

/* Handles are numbers, never pointers, so that a scenario may change under them. */
static device_t handle_of(int gpu, int mig_row)
{
    return (device_t)(uintptr_t)(0x10000 + (gpu << 8) + mig_row + 1);
}

/* Reads the scenario again and finds what a handle stands for. `m` may be NULL when MIG handles are not allowed. */
static int open_device(device_t handle, struct gpu **g, struct mig **m)
{
    int number = (int)(uintptr_t)handle - 0x10000, gpu = number >> 8, row = (number & 0xff) - 1;
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (scenario_load(&sc))
        return NVML_ERROR_UNKNOWN;
    if (number < 0 || gpu >= sc.gpu_count || row >= sc.mig_count || (row >= 0 && !m))
        return NVML_ERROR_INVALID_ARGUMENT;
    *g = &sc.gpus[gpu];
    if (m)
        *m = row < 0 ? NULL : &sc.migs[row];
    return (*g)->lost == LOST_NO ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

static int open_system(void)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    return scenario_load(&sc) ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

static int put_text(const char *text, char *out, unsigned size)
{
    if (strlen(text) + 1 > size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

/* The frame of every function: take the lock, find what the handle stands for (`g`, and `m` for a MIG instance), set
 * `rc`; END gives the lock back and returns `rc`. */
#define BEGIN pthread_mutex_lock(&lock); struct gpu *g = NULL; struct mig *m = NULL; (void)g; (void)m; int rc
#define END pthread_mutex_unlock(&lock); return rc
#define ON_GPU(handle) BEGIN = open_device(handle, &g, NULL); if (!rc)
#define ON_ANY(handle) BEGIN = open_device(handle, &g, &m); if (!rc)
#define ON_SYSTEM BEGIN = open_system(); if (!rc)

/* ---- library ---- */
EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    BEGIN = scenario_load(&sc);
    if (rc)
        rc = rc == SCENARIO_MISSING ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_ERROR_UNKNOWN;
    else
        rc = sc.init;
    if (!rc)
        users++;
    END;
}
EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlInit(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlShutdown(void)
{
    BEGIN = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (!rc)
        users--;
    END;
}
EXPORT const char *nvmlErrorString(int code)
{
    switch (code) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}
EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    ON_SYSTEM rc = put_text(sc.driver, out, size);
    END;
}
EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    ON_SYSTEM rc = put_text(sc.nvml, out, size);
    END;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    ON_SYSTEM *out = sc.cuda;
    END;
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }
EXPORT int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size)
{
    char path[64];
    ON_SYSTEM {
        snprintf(path, sizeof path, "/proc/%u/comm", pid);
        FILE *file = fopen(path, "re");
        if (!file || !fgets(out, (int)size, file))
            rc = NVML_ERROR_NOT_FOUND;
        else
            out[strcspn(out, "\n")] = 0;
        if (file)
            fclose(file);
    }
    END;
}

/* ---- finding devices ---- */
EXPORT int nvmlDeviceGetCount_v2(unsigned *out)
{
    ON_SYSTEM *out = (unsigned)sc.gpu_count;
    END;
}
static int open_gpu(int index, device_t *out)
{
    *out = handle_of(index, -1);
    return sc.gpus[index].lost == LOST_FROM_HANDLE ? NVML_ERROR_GPU_IS_LOST : sc.gpus[index].handle;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out)
{
    ON_SYSTEM {
        if (index >= (unsigned)sc.gpu_count)
            rc = NVML_ERROR_INVALID_ARGUMENT; /* what the real library says of an index that is too high */
        else
            rc = open_gpu((int)index, out);
    }
    END;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out)
{
    ON_SYSTEM {
        rc = NVML_ERROR_NOT_FOUND;
        for (int i = 0; i < sc.gpu_count; i++)
            if (!strcmp(sc.gpus[i].uuid, uuid)) {
                rc = open_gpu(i, out);
                break;
            }
        for (int i = 0; rc == NVML_ERROR_NOT_FOUND && i < sc.mig_count; i++)
            if (!strcmp(sc.migs[i].uuid, uuid)) {
                rc = NVML_SUCCESS;
                *out = handle_of(sc.migs[i].gpu, i);
            }
    }
    END;
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, device_t *out)
{
    ON_SYSTEM {
        rc = NVML_ERROR_NOT_FOUND;
        for (int i = 0; i < sc.gpu_count; i++)
            if (!strcasecmp(sc.gpus[i].pci, pci)) {
                rc = NVML_SUCCESS;
                *out = handle_of(i, -1);
            }
    }
    END;
}

/* ---- identity ---- */
EXPORT int nvmlDeviceGetUUID(device_t d, char *out, unsigned size)
{
    ON_ANY(d) rc = put_text(m ? m->uuid : g->uuid, out, size);
    END;
}
EXPORT int nvmlDeviceGetName(device_t d, char *out, unsigned size)
{
    ON_ANY(d) rc = put_text(m ? m->name : g->name, out, size);
    END;
}
EXPORT int nvmlDeviceGetSerial(device_t d, char *out, unsigned size)
{
    ON_GPU(d) rc = *g->serial ? put_text(g->serial, out, size) : NVML_ERROR_NOT_SUPPORTED;
    END;
}
EXPORT int nvmlDeviceGetIndex(device_t d, unsigned *out)
{
    ON_ANY(d) *out = m ? (unsigned)m->index : (unsigned)(g - sc.gpus);
    END;
}
EXPORT int nvmlDeviceGetMinorNumber(device_t d, unsigned *out)
{
    ON_GPU(d) *out = (unsigned)(g - sc.gpus);
    END;
}
EXPORT int nvmlDeviceGetPciInfo_v3(device_t d, struct pci *out)
{
    ON_GPU(d) {
        memset(out, 0, sizeof *out);
        sscanf(g->pci, "%x:%x:%x", &out->domain, &out->bus, &out->device);
        out->device_id = 0x233510de; /* H200 SXM */
        snprintf(out->legacy, sizeof out->legacy, "%04x:%02x:%02x.0", out->domain & 0xffff, out->bus & 0xff,
                 out->device & 0xff);
        snprintf(out->bus_id, sizeof out->bus_id, "%.31s", g->pci);
    }
    END;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(device_t d, int *major, int *minor)
{
    ON_GPU(d) {
        *major = (int)g->cc_major;
        *minor = (int)g->cc_minor;
    }
    END;
}
EXPORT int nvmlDeviceGetNumaNodeId(device_t d, unsigned *out)
{
    ON_GPU(d) {
        if (g->numa < 0)
            rc = NVML_ERROR_NOT_SUPPORTED;
        else
            *out = (unsigned)g->numa;
    }
    END;
}

/* ---- memory and processes ---- */
static int applies(const struct use *u, int gpu, const struct mig *m)
{
    return u->holder->gpu == gpu && (!m || u->holder->mig == m->index);
}

static int memory_of(const struct gpu *g, const struct mig *m, struct memory_v2 *out)
{
    int bad = m ? m->memory : g->memory, n, gpu = (int)(g - sc.gpus);
    if (bad)
        return bad;
    n = holders_now(&sc, uses, MAX_TRACKED);
    out->total = m ? m->total : g->total;
    out->reserved = m ? m->reserved : g->reserved;
    out->used = 0;
    for (int i = 0; i < n; i++)
        if (applies(&uses[i], gpu, m))
            out->used += uses[i].holder->bytes + uses[i].holder->overhead;
    if (out->used > out->total - out->reserved)
        out->used = out->total - out->reserved;
    out->free = out->total - out->reserved - out->used;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(device_t d, struct memory *out)
{
    struct memory_v2 now;
    ON_ANY(d) {
        rc = memory_of(g, m, &now);
        if (!rc) /* version 1 counts the driver's reserve as used: seen on an H200 */
            *out = (struct memory){now.total, now.free, now.used + now.reserved};
    }
    END;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(device_t d, struct memory_v2 *out)
{
    ON_ANY(d) {
        if (!sc.memory_v2)
            rc = NVML_ERROR_FUNCTION_NOT_FOUND; /* pynvml raises the same when the symbol is absent */
        else if (out->version != MEMORY_V2)
            rc = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
        else
            rc = memory_of(g, m, out);
    }
    END;
}

static void instance_of(const struct use *u, struct process *out)
{
    out->gi = out->ci = NO_INSTANCE;
    for (int i = 0; i < sc.mig_count; i++)
        if (sc.migs[i].gpu == u->holder->gpu && sc.migs[i].index == u->holder->mig) {
            out->gi = sc.migs[i].gi;
            out->ci = sc.migs[i].ci;
        }
}

static int processes_of(device_t d, enum kind kind, unsigned *count, struct process *out)
{
    unsigned found = 0, room = *count;
    ON_ANY(d) rc = g->processes;
    if (!rc) {
        int n = holders_now(&sc, uses, MAX_TRACKED), gpu = (int)(g - sc.gpus);
        for (int i = 0; i < n; i++) {
            const struct holder *h = uses[i].holder;
            if (!applies(&uses[i], gpu, m) || h->kind != kind || !h->listed ||
                (uses[i].dead && !h->listed_after_death))
                continue;
            if (out && found < room) {
                out[found].pid = (unsigned)uses[i].pid;
                out[found].used = h->attributed ? h->bytes : NOT_AVAILABLE;
                instance_of(&uses[i], &out[found]);
            }
            found++;
        }
        *count = found;
        if (found > room || (found && !out))
            rc = NVML_ERROR_INSUFFICIENT_SIZE;
    }
    END;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device_t d, unsigned *n, struct process *out)
{
    return processes_of(d, COMPUTE, n, out);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t d, unsigned *n, struct process *out)
{
    return processes_of(d, GRAPHICS, n, out);
}
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t d, unsigned *n, struct process *out)
{
    return processes_of(d, MPS, n, out);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(device_t d, unsigned *n, struct process *out)
{
    return processes_of(d, COMPUTE, n, out);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v2(device_t d, unsigned *n, struct process *out)
{
    return processes_of(d, GRAPHICS, n, out);
}
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v2(device_t d, unsigned *n, struct process *out)
{
    return processes_of(d, MPS, n, out);
}

/* ---- MIG ---- */
EXPORT int nvmlDeviceGetMigMode(device_t d, unsigned *current, unsigned *pending)
{
    ON_GPU(d) {
        if (g->mig < 0)
            rc = NVML_ERROR_NOT_SUPPORTED;
        else
            *current = *pending = (unsigned)g->mig;
    }
    END;
}
EXPORT int nvmlDeviceIsMigDeviceHandle(device_t d, unsigned *out)
{
    ON_ANY(d) *out = m != NULL;
    END;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(device_t d, unsigned *out)
{
    ON_GPU(d) *out = g->mig < 0 ? 0 : 7;
    END;
}
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(device_t d, unsigned index, device_t *out)
{
    ON_GPU(d) {
        int gpu = (int)(g - sc.gpus);
        rc = g->mig == 1 ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;
        for (int i = 0; rc == NVML_ERROR_NOT_FOUND && i < sc.mig_count; i++)
            if (sc.migs[i].gpu == gpu && sc.migs[i].index == (int)index) {
                rc = NVML_SUCCESS;
                *out = handle_of(gpu, i);
            }
    }
    END;
}
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t d, device_t *out)
{
    ON_ANY(d) {
        if (!m)
            rc = NVML_ERROR_INVALID_ARGUMENT;
        else
            *out = handle_of(m->gpu, -1);
    }
    END;
}
EXPORT int nvmlDeviceGetGpuInstanceId(device_t d, unsigned *out)
{
    ON_ANY(d) {
        if (m)
            *out = m->gi;
        else
            rc = NVML_ERROR_INVALID_ARGUMENT;
    }
    END;
}
EXPORT int nvmlDeviceGetComputeInstanceId(device_t d, unsigned *out)
{
    ON_ANY(d) {
        if (m)
            *out = m->ci;
        else
            rc = NVML_ERROR_INVALID_ARGUMENT;
    }
    END;
}

/* ---- health and topology, for the host checks ---- */
EXPORT int nvmlDeviceGetEccMode(device_t d, unsigned *current, unsigned *pending)
{
    ON_GPU(d) *current = *pending = (unsigned)g->ecc;
    END;
}
EXPORT int nvmlDeviceGetTotalEccErrors(device_t d, unsigned type, unsigned counter, unsigned long long *out)
{
    (void)counter;
    ON_GPU(d) {
        if (!g->ecc)
            rc = NVML_ERROR_NOT_SUPPORTED;
        else
            *out = type ? g->ecc_uncorrected : g->ecc_corrected;
    }
    END;
}
EXPORT int nvmlDeviceGetRemappedRows(device_t d, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                     unsigned *failure)
{
    ON_GPU(d) {
        *corrected = g->remap_corrected;
        *uncorrected = g->remap_uncorrected;
        *pending = g->remap_pending;
        *failure = g->remap_failed;
    }
    END;
}
EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(device_t d, unsigned *out)
{
    (void)out;
    ON_GPU(d) rc = NVML_ERROR_NOT_SUPPORTED; /* row remapping replaced it from Ampere on */
    END;
}
EXPORT int nvmlDeviceGetNvLinkState(device_t d, unsigned link, unsigned *out)
{
    ON_GPU(d) {
        if (link >= g->nvlinks)
            rc = g->nvlinks ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
        else
            *out = link >= g->nvlinks_down; /* the first `nvlinks_down` links are down */
    }
    END;
}
EXPORT int nvmlDeviceGetTopologyCommonAncestor(device_t a, device_t b, int *out)
{
    ON_GPU(a) rc = open_device(b, &g, NULL);
    if (!rc)
        *out = a == b ? 0 : sc.topology;
    END;
}
/* Status OK is 0, "not supported" 5: what two H200 said (driver 580.159.04), where the PCI index is not supported. */
EXPORT int nvmlDeviceGetP2PStatus(device_t a, device_t b, int index, int *out)
{
    struct gpu *other;
    ON_GPU(a) {
        int linked = g->nvlinks > g->nvlinks_down, number = (int)(g - sc.gpus);
        rc = open_device(b, &other, NULL); /* reads the scenario again, into the same place */
        if (!rc) {
            g = &sc.gpus[number];
            linked = linked && other->nvlinks > other->nvlinks_down;
            *out = index == 4 || (index == 2 && !linked) ? 5 : 0;
        }
    }
    END;
}
EXPORT int nvmlDeviceGetGpuFabricInfoV(device_t d, struct fabric *out)
{
    ON_GPU(d) {
        if (g->fabric_state < 0) {
            rc = NVML_ERROR_NOT_SUPPORTED;
        } else {
            out->status = g->fabric_status;
            out->state = (unsigned char)g->fabric_state;
        }
    }
    END;
}
