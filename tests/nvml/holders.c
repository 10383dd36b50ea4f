/* Memory that follows real processes.
 *
 * The library has no daemon: whoever loads it looks at the processes. A process that is seen alive is written to
 * <scenario>.state; the first look that finds it dead writes the time, and its memory is held for free_ms more. So
 * memory is never free earlier than free_ms after the real death. Several readers share the file under a lock.
 */
#include "double.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct tracked table[MAX_TRACKED];
static int rows, changed;

static long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The start time of a living process in ticks; 0 when it is gone or a zombie (its memory is freed by then). */
static unsigned long long start_of(pid_t pid)
{
    char path[64], text[1024], state;
    unsigned long long start = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char *rest = strrchr(text, ')'); /* comm may hold blanks and brackets */
    if (!rest || sscanf(rest, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                        &state, &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : start;
}

static int command_has(pid_t pid, const char *needle)
{
    char path[64], text[4096];
    if (!*needle)
        return 1;
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    for (ssize_t i = 0; i < n; i++)
        if (!text[i])
            text[i] = ' ';
    text[n] = 0;
    return strstr(text, needle) != NULL;
}

static struct tracked *add(const char *id, pid_t pid, unsigned long long start)
{
    if (rows == MAX_TRACKED)
        return NULL;
    struct tracked *t = &table[rows++];
    memset(t, 0, sizeof *t);
    snprintf(t->id, sizeof t->id, "%s", id);
    t->pid = pid;
    t->start = start;
    changed = 1;
    return t;
}

static void seen_alive(const struct holder *h, pid_t pid)
{
    unsigned long long start = start_of(pid);
    if (!start || !command_has(pid, h->match))
        return;
    for (int i = 0; i < rows; i++)
        if (table[i].pid == pid && table[i].start == start && !strcmp(table[i].id, h->id))
            return;
    add(h->id, pid, start);
}

static void look_at_cgroup(const struct holder *h, const char *dir)
{
    char path[PATH_TEXT];
    int pid;
    snprintf(path, sizeof path, "%s/cgroup.procs", dir);
    FILE *file = fopen(path, "re");
    if (file) {
        while (fscanf(file, "%d", &pid) == 1)
            seen_alive(h, pid);
        fclose(file);
    }
    DIR *list = opendir(dir);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        struct stat info;
        if (*entry->d_name == '.')
            continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, entry->d_name) < (int)sizeof path && !stat(path, &info) &&
            S_ISDIR(info.st_mode))
            look_at_cgroup(h, path);
    }
    if (list)
        closedir(list);
}

static void look_at_pid(const struct holder *h)
{
    seen_alive(h, h->pid);
    for (int i = 0; i < rows; i++)
        if (table[i].pid == h->pid && !strcmp(table[i].id, h->id))
            return;
    struct tracked *t = add(h->id, h->pid, 0); /* dead before anybody looked: its time runs from now */
    if (t)
        t->died_ms = now_ms();
}

static const struct holder *holder_of(const struct scenario *sc, const char *id)
{
    for (int i = 0; i < sc->holder_count; i++)
        if (!strcmp(sc->holders[i].id, id))
            return &sc->holders[i];
    return NULL;
}

static void read_table(int fd)
{
    struct tracked t;
    char format[64];
    rows = 0;
    lseek(fd, 0, SEEK_SET);
    FILE *file = fdopen(dup(fd), "r");
    if (!file)
        return;
    snprintf(format, sizeof format, "%%%ds %%d %%llu %%lld", TEXT - 1);
    while (rows < MAX_TRACKED && fscanf(file, format, t.id, &t.pid, &t.start, &t.died_ms) == 4)
        table[rows++] = t;
    fclose(file);
}

static void write_table(int fd)
{
    if (ftruncate(fd, 0))
        return;
    lseek(fd, 0, SEEK_SET);
    for (int i = 0; i < rows; i++)
        dprintf(fd, "%s %d %llu %lld\n", table[i].id, (int)table[i].pid, table[i].start, table[i].died_ms);
}

static void look(const struct scenario *sc)
{
    for (int i = 0; i < sc->holder_count; i++) {
        const struct holder *h = &sc->holders[i];
        if (h->source == SOURCE_PID)
            look_at_pid(h);
        else if (h->source == SOURCE_CGROUP)
            look_at_cgroup(h, h->cgroup);
    }
    for (int i = 0; i < rows; i++)
        if (!table[i].died_ms && start_of(table[i].pid) != table[i].start) {
            table[i].died_ms = now_ms();
            changed = 1;
        }
}

int holders_now(const struct scenario *sc, struct use *out, int max)
{
    char path[PATH_TEXT];
    int n = 0;
    snprintf(path, sizeof path, "%s.state", scenario_path());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0) { /* a reader that may not write keeps its own table in memory */
        flock(fd, LOCK_EX);
        read_table(fd);
    }
    changed = 0;
    look(sc);
    if (fd >= 0) {
        if (changed)
            write_table(fd);
        close(fd);
    }
    for (int i = 0; i < sc->holder_count && n < max; i++)
        if (sc->holders[i].source == SOURCE_ALWAYS)
            out[n++] = (struct use){&sc->holders[i], sc->holders[i].pid, 0};
    long long now = now_ms();
    for (int i = 0; i < rows && n < max; i++) {
        const struct holder *h = holder_of(sc, table[i].id);
        if (!h || h->source == SOURCE_ALWAYS)
            continue;
        long long died = table[i].died_ms;
        if (!died || h->free_ms < 0 || now < died + h->free_ms)
            out[n++] = (struct use){h, table[i].pid, died != 0};
    }
    return n;
}
