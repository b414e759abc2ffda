# From a wrong count of money to two desks that hold different locks, each on its own processor.

echo \n# Back to the count that failed.\n
break *$fault
reverse-continue
delete
monitor when
printf "%d are in the till, and %d should be\n", till, sold - paid_back

echo \n# No price is above 100. Backwards through the writes to the till, until one changes more: standing before each, the\n
echo # money that it leaves is what was seen last.\n
set $after = till
set $writes = 0
watch till
commands
  silent
end
set logging file /dev/null
set logging redirect on
set logging enabled on
while $writes < 1000
  reverse-continue
  set $writes = $writes + 1
  if $after + 100 < till || till + 100 < $after
    loop_break
  end
  set $after = till
end
set logging enabled off
printf "%d writes further back: here the till goes from %d to %d\n", $writes, till, $after
monitor when
culprit

echo \n# This money was computed from what was in the till before. Who has changed it since? Another processor.\n
reverse-continue
delete
on-the-way
monitor when

echo \n# The first desk was in the middle of its sale all the while, and held its lock. So did the second.\n
printf "the lock of sales is %d, that of returns is %d\n", sales_lock.rlock.raw_lock.val.counter, returns_lock.rlock.raw_lock.val.counter
thread 1
bt 1
thread 2

echo \n# Back to where the second desk took its lock: it is another lock than the first desk's.\n
watch returns_lock.rlock.raw_lock.val.counter
reverse-continue
delete
quietly-back-to-module
up
culprit
