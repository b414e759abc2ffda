# From a fault in a harmless loop to the corrupted object, to the function that wrote into the object, and to the
# function that freed the object while it was still in use.

echo \n# Back to the instruction that faulted.\n
break *$fault
reverse-continue
on-the-way
info locals

echo \n# It follows a pointer that is text. The round of the loop before this one got it from a caller who waits:\n
reverse-continue
delete
print *caller
set $object = caller

echo \n# Who wrote that?\n
watch -location $object->next_waiting
reverse-continue
delete
quietly-back-to-module
on-the-way
info locals

echo \n# A note, by a user that was given this card by the allocator. So it was free before. Who gave it back,\n
echo # and from where?\n
break forget if caller == $object
reverse-continue
delete
reverse-finish
culprit
print *caller
print waiting
monitor when
