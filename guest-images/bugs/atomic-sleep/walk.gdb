# From "scheduling while atomic" to the call that sleeps in an interrupt, and to who holds what it waits for.

echo \n# The report shows where the kernel noticed. Somebody is in the queue of the journal's semaphore now:\n
monitor when
print journal.lock.count
print journal.pending

echo \n# Back to when it got into the queue, and out of the kernel's functions to the call in the module.\n
watch journal.lock.wait_list.next
reverse-continue
delete
quietly-back-to-module
culprit

echo \n# This is called when the device has finished a record. What is the CPU doing here? Bits 16 to 19 of the preemption\n
echo # count say that it is in a hardware interrupt; so this must not wait. It usually need not: who has the semaphore?\n
watch journal.lock.count
reverse-continue
delete
quietly-back-to-module
culprit
info locals
monitor when
