# From "scheduling while atomic" to the call that sleeps in an interrupt, and to the function that holds the semaphore.

echo \n# The report says where the kernel noticed, and 0x00010002: the CPU is in a hardware interrupt. Something waits for the\n
echo # journal's semaphore, and requests are under way.\n
monitor when
print journal.lock.count
print journal.pending

echo \n# Back to when it got into the queue, and out of the kernel's functions to the call in the module.\n
watch journal.lock.wait_list.next
reverse-continue
delete
quietly-back-to-module
culprit

echo \n# The device has finished a record, and this is its interrupt: here one must not wait. Most days one need not. Who has\n
echo # the semaphore today?\n
watch journal.lock.count
reverse-continue
delete
quietly-back-to-module
on-the-way
backtrace 2
monitor when
