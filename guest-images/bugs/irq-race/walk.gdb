# From an audit with a wrong sum to the lost update, some milliseconds earlier.

echo \n# Back to the check that failed.\n
break *$fault
reverse-continue
delete
monitor when
print bucket
printf "%d tokens are missing\n", filled - spent - bucket.level

echo \n# Nothing is wrong with the check. Each write to the level should take four at most, or add. Backwards through the\n
echo # writes, until one does not: standing before each, the level it leaves is the one that was seen last.\n
set $after = bucket.level
set $writes = 0
watch bucket.level
commands
  silent
end
while $writes < 1000
  reverse-continue
  set $writes = $writes + 1
  if $after + 4 < bucket.level
    loop_break
  end
  set $after = bucket.level
end
printf "%d writes further back: here the level goes from %d to %d\n", $writes, bucket.level, $after
monitor when
culprit

echo \n# What it stores was computed from an older level: another one has been written since. By whom?\n
reverse-continue
delete
on-the-way
printf "This makes it %d.\n", bucket.level + 25

echo \n# And where does the old one come from? Back through the reads, to that of the function that was interrupted.\n
rwatch bucket.level
set $reads = 0
while $reads < 1 || ($reads < 10 && ($rip < (void *) take || $rip > (void *) take + 64))
  reverse-continue
  set $reads = $reads + 1
end
delete
on-the-way
monitor when
