// Preloaded into a program, lets OpenVINO see more processors than this machine has, so that it starts as many
// threads: what its CPU plugin reads below /sys/devices/system comes from $PRETENDED_SYSTEM, and a process may
// run on the first $PRETENDED_PROCESSORS processors.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char system_folder[] = "/sys/devices/system/";

FILE *fopen64(const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen64");
    char pretended[4096];
    size_t length = sizeof(system_folder) - 1;
    if (strncmp(path, system_folder, length) != 0) return real(path, mode);
    snprintf(pretended, sizeof(pretended), "%s/%s", getenv("PRETENDED_SYSTEM"), path + length);
    return real(pretended, mode);
}

FILE *fopen(const char *path, const char *mode) { return fopen64(path, mode); }

int sched_getaffinity(pid_t process, size_t size, cpu_set_t *mask) {
    (void)process;
    CPU_ZERO_S(size, mask);
    for (int number = 0; number < atoi(getenv("PRETENDED_PROCESSORS")); number++) CPU_SET_S(number, size, mask);
    return 0;
}

int sched_setaffinity(pid_t process, size_t size, const cpu_set_t *mask) {
    (void)process, (void)size, (void)mask;
    return 0;
}
