# From a question that nobody answered to the moment at which the driver forgot the question, a second earlier.

echo \n# Back to the wait that ended in vain.\n
break *$fault
reverse-continue
delete
monitor when
print desk
printf "%d of %d questions were answered, %d waits in the queue, and the device has nothing to do\n", desk.answered, desk.asked, desk.in_queue

echo \n# Who put it there?\n
watch desk.in_queue
commands
  silent
end
reverse-continue
delete
on-the-way
monitor when
print desk.current_question
echo The device is idle already: the question goes into a queue that nothing will look at again.\n

echo \n# Since when is the device idle?\n
watch desk.current_question
commands
  silent
end
reverse-continue
on-the-way
monitor when
echo The interrupt of its last answer: it found nothing in the queue. What it interrupted:\n
backtrace
delete

echo \n# And what did ask() read? Back through the reads, to the one by which it decided.\n
rwatch desk.current_question
commands
  silent
end
set $reads = 0
while $reads < 1 || ($reads < 10 && ($rip < (void *) ask || $rip > (void *) ask + 64))
  reverse-continue
  set $reads = $reads + 1
end
delete
culprit
monitor when
