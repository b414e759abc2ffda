# From a visitor who waits in vain to the porter who goes to sleep although the bell has rung, on another processor.

echo \n# Back to the complaint.\n
break *$fault
reverse-continue
delete
monitor when
printf "visitor %d waits, and the bell has rung: %d\n", visitors, rings

echo \n# The porter sleeps. Since when?\n
watch -location porter_task->__state
reverse-continue
delete
monitor when
culprit
printf "The bell has rung already: %d.\n", rings

echo \n# Who rang, and when? A visitor, on another processor.\n
watch rings
reverse-continue
delete
on-the-way
monitor when

echo \n# The porter is awake, so the visitor's wake-up does nothing. What does the porter do meanwhile?\n
thread 1
bt 2

echo \n# It is on its way from the check to its sleep.\n
rwatch rings
reverse-continue
delete
on-the-way
printf "Here the bell has not rung: %d.\n", rings
