// kexec load|crash KERNEL INITRD COMMAND-LINE: loads a kernel to be started by kexec, or after a panic.
// kexec start: starts the loaded kernel.
#include <fcntl.h>
#include <linux/kexec.h>
#include <linux/reboot.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count == 2 && strcmp(words[1], "start") == 0) {
        syscall(SYS_reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_CMD_KEXEC, 0);
        perror("reboot");
        return 1;
    }
    if (count != 5)
        return 2;
    int kernel = open(words[2], O_RDONLY), initrd = open(words[3], O_RDONLY);
    unsigned long flags = strcmp(words[1], "crash") == 0 ? KEXEC_FILE_ON_CRASH : 0;
    if (syscall(SYS_kexec_file_load, kernel, initrd, strlen(words[4]) + 1, words[4], flags) != 0) {
        perror("kexec_file_load");
        return 1;
    }
    return 0;
}
