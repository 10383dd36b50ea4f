/* The scenario file: one line an object, `word key=value …`, values percent-encoded. Format: README.md. */
#include "double.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed; /* set by the readers of values, looked at once a line */

const char *scenario_path(void)
{
    const char *path = getenv("AERIE_NVML_SCENARIO");
    return path && *path ? path : "/etc/aerie-nvml/scenario";
}

static void decode(const char *from, char *to, size_t size)
{
    size_t n = 0;
    for (; *from && n + 1 < size; from++) {
        unsigned byte;
        if (*from == '%' && sscanf(from + 1, "%2x", &byte) == 1) {
            to[n++] = (char)byte;
            from += 2;
        } else {
            to[n++] = *from;
        }
    }
    to[n] = 0;
}

static long long number(const char *text)
{
    char *end;
    long long value = strtoll(text, &end, 0);
    if (!*text || *end)
        failed = 1;
    return value;
}

static int yes(const char *text)
{
    if (strcmp(text, "yes") && strcmp(text, "no"))
        failed = 1;
    return !strcmp(text, "yes");
}

/* `ok`, a named error or the number of any nvmlReturn_t. */
static int result(const char *text)
{
    static const struct { const char *name; int value; } names[] = {
        {"ok", NVML_SUCCESS},
        {"not-supported", NVML_ERROR_NOT_SUPPORTED},
        {"no-permission", NVML_ERROR_NO_PERMISSION},
        {"not-found", NVML_ERROR_NOT_FOUND},
        {"driver-not-loaded", NVML_ERROR_DRIVER_NOT_LOADED},
        {"timeout", NVML_ERROR_TIMEOUT},
        {"lost", NVML_ERROR_GPU_IS_LOST},
        {"reset-required", NVML_ERROR_RESET_REQUIRED},
        {"mismatch", NVML_ERROR_LIB_RM_VERSION_MISMATCH},
        {"unknown", NVML_ERROR_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i].name))
            return names[i].value;
    return (int)number(text);
}

static int choice(const char *text, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(text, names[i]))
            return i;
    failed = 1;
    return 0;
}

#define STRING(field) decode(value, field, sizeof field)
#define KEY(name) (!strcmp(key, name))

static void system_key(struct scenario *sc, const char *key, const char *value)
{
    if KEY("driver") STRING(sc->driver);
    else if KEY("nvml") STRING(sc->nvml);
    else if KEY("cuda") sc->cuda = (int)number(value);
    else if KEY("init") sc->init = result(value);
    else if KEY("memory_v2") sc->memory_v2 = yes(value);
    else if KEY("topology") sc->topology = (int)number(value);
    else failed = 1;
}

static void gpu_key(struct gpu *g, const char *key, const char *value)
{
    static const char *const losts[] = {"no", "yes", "late", NULL};
    if KEY("uuid") STRING(g->uuid);
    else if KEY("name") STRING(g->name);
    else if KEY("serial") STRING(g->serial);
    else if KEY("pci") STRING(g->pci);
    else if KEY("total") g->total = (unsigned long long)number(value);
    else if KEY("reserved") g->reserved = (unsigned long long)number(value);
    else if KEY("ecc") g->ecc = yes(value);
    else if KEY("ecc_corrected") g->ecc_corrected = (unsigned long long)number(value);
    else if KEY("ecc_uncorrected") g->ecc_uncorrected = (unsigned long long)number(value);
    else if KEY("remap_corrected") g->remap_corrected = (unsigned)number(value);
    else if KEY("remap_uncorrected") g->remap_uncorrected = (unsigned)number(value);
    else if KEY("remap_pending") g->remap_pending = (unsigned)yes(value);
    else if KEY("remap_failed") g->remap_failed = (unsigned)yes(value);
    else if KEY("nvlinks") g->nvlinks = (unsigned)number(value);
    else if KEY("nvlinks_down") g->nvlinks_down = (unsigned)number(value);
    else if KEY("cc_major") g->cc_major = (unsigned)number(value);
    else if KEY("cc_minor") g->cc_minor = (unsigned)number(value);
    else if KEY("numa") g->numa = (int)number(value);
    else if KEY("fabric_state") g->fabric_state = (int)number(value);
    else if KEY("fabric_status") g->fabric_status = result(value);
    else if KEY("mig") g->mig = !strcmp(value, "none") ? -1 : yes(value);
    else if KEY("handle") g->handle = result(value);
    else if KEY("memory") g->memory = result(value);
    else if KEY("processes") g->processes = result(value);
    else if KEY("lost") g->lost = (enum lost)choice(value, losts);
    else failed = 1;
}

static void mig_key(struct mig *m, const char *key, const char *value)
{
    if KEY("gpu") m->gpu = (int)number(value);
    else if KEY("index") m->index = (int)number(value);
    else if KEY("uuid") STRING(m->uuid);
    else if KEY("name") STRING(m->name);
    else if KEY("gi") m->gi = (unsigned)number(value);
    else if KEY("ci") m->ci = (unsigned)number(value);
    else if KEY("total") m->total = (unsigned long long)number(value);
    else if KEY("reserved") m->reserved = (unsigned long long)number(value);
    else if KEY("memory") m->memory = result(value);
    else failed = 1;
}

static void holder_key(struct holder *h, const char *key, const char *value)
{
    static const char *const kinds[] = {"compute", "graphics", "mps", NULL};
    static const char *const sources[] = {"pid", "cgroup", "always", NULL};
    if KEY("id") STRING(h->id);
    else if KEY("gpu") h->gpu = (int)number(value);
    else if KEY("mig") h->mig = (int)number(value);
    else if KEY("source") h->source = (enum source)choice(value, sources);
    else if KEY("pid") h->pid = (pid_t)number(value);
    else if KEY("cgroup") STRING(h->cgroup);
    else if KEY("match") STRING(h->match);
    else if KEY("kind") h->kind = (enum kind)choice(value, kinds);
    else if KEY("bytes") h->bytes = (unsigned long long)number(value);
    else if KEY("overhead") h->overhead = (unsigned long long)number(value);
    else if KEY("listed") h->listed = yes(value);
    else if KEY("attributed") h->attributed = yes(value);
    else if KEY("listed_after_death") h->listed_after_death = yes(value);
    else if KEY("free_ms") h->free_ms = !strcmp(value, "never") ? -1 : number(value);
    else failed = 1;
}

static void *new_object(struct scenario *sc, const char *word)
{
    if (!strcmp(word, "gpu") && sc->gpu_count < MAX_GPUS) {
        struct gpu *g = &sc->gpus[sc->gpu_count++];
        g->numa = -1;
        g->ecc = 1;
        g->fabric_state = -1;
        return g;
    }
    if (!strcmp(word, "mig") && sc->mig_count < MAX_MIGS)
        return &sc->migs[sc->mig_count++];
    if (!strcmp(word, "holder") && sc->holder_count < MAX_HOLDERS) {
        struct holder *h = &sc->holders[sc->holder_count++];
        h->mig = -1;
        h->listed = h->attributed = h->listed_after_death = 1;
        return h;
    }
    return !strcmp(word, "system") ? sc : NULL;
}

static int read_line(struct scenario *sc, char *line)
{
    char *save, *word = strtok_r(line, " \t\r\n", &save);
    if (!word || *word == '#')
        return 0;
    void *object = new_object(sc, word);
    if (!object)
        return -1;
    failed = 0;
    for (char *key; (key = strtok_r(NULL, " \t\r\n", &save));) {
        char *value = strchr(key, '=');
        if (!value)
            return -1;
        *value++ = 0;
        if (object == (void *)sc)
            system_key(sc, key, value);
        else if (!strcmp(word, "gpu"))
            gpu_key(object, key, value);
        else if (!strcmp(word, "mig"))
            mig_key(object, key, value);
        else
            holder_key(object, key, value);
        if (failed) {
            fprintf(stderr, "nvml double: %s: cannot read %s=%s of `%s`\n", scenario_path(), key, value, word);
            return -1;
        }
    }
    return 0;
}

int scenario_load(struct scenario *out)
{
    char line[4096];
    int rc = 0, row = 0;
    memset(out, 0, sizeof *out);
    out->memory_v2 = 1;
    FILE *file = fopen(scenario_path(), "re");
    if (!file)
        return SCENARIO_MISSING;
    while (!rc && fgets(line, sizeof line, file)) {
        row++;
        rc = read_line(out, line);
    }
    if (rc)
        fprintf(stderr, "nvml double: %s:%d cannot be read\n", scenario_path(), row);
    fclose(file);
    return rc ? SCENARIO_BAD : 0;
}
