# From a panic without a usable backtrace to the call through a null pointer, to the write that destroyed the stack, and
# to the write that made the pointer null.

echo \n# The end of the recording. The report says RIP 0, and its backtrace is guesswork.\n
monitor when

echo \n# The report names the stack pointer. Right below it the CPU pushed what it was doing when it faulted: go back to\n
echo # before that. It stands at address 0; from where did it come there?\n
watch *(unsigned long *) (($fault_rsp & ~15) - 16)
reverse-continue
delete
info registers rip rsp
quietly-back-to-module
culprit

echo \n# The word on top of the stack should be the address to return to. It is text. Who wrote it?\n
x/s $rsp
watch -location *(unsigned long *) $rsp
reverse-continue
delete
on-the-way
echo \n# One call further up, and before it: the backtrace that the report could not show.\n
reverse-finish
backtrace 3
info locals

echo \n# The length was not limited, and the port has no function to reply with. Who took it away?\n
print *port
watch -location port->reply
reverse-continue
delete
culprit
monitor when
