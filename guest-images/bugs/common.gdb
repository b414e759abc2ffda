# Commands that the walks share. guest-images/bugs/walk has set $text and $text_end to the begin and the end of the
# module's code.

set pagination off
set confirm off
set width 0
set print address on
set print elements 48
set disassemble-next-line off

# on-the-way and culprit print the current place: function, source line, instruction. guest-images/bugs/walk makes its
# summary from the lines after the printed words `on the way:` and `culprit:`.
define on-the-way
  echo on the way:\n
  frame
  x/i $rip
end

define culprit
  echo culprit:\n
  frame
  x/i $rip
end

# quietly-back-to-module: steps back until an instruction of the module is next, out of kernel functions that the module
# called. The kernel has no symbols in this gdb, so gdb's finish does not know where these functions began.
define quietly-back-to-module
  set logging file /dev/null
  set logging redirect on
  set logging enabled on
  set $steps_left = 5000
  while $steps_left > 0 && ((unsigned long) $rip < $text || (unsigned long) $rip >= $text_end)
    reverse-stepi
    set $steps_left = $steps_left - 1
  end
  set logging enabled off
end
