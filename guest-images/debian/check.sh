#!/bin/sh
# Proves that the guest runs real programs: a C compiler and what it made, perl and python3 all work out the same
# sum in floating point. Prints CHECK-OK and the sum, or CHECK-FAILED and what each of them got.
set -e
cd "$(mktemp -d)"
cat >check.c <<'C'
#include <stdio.h>
int main(void) {
    double sum = 0;
    for (int i = 1; i <= 10000; i++)
        sum += 1.0 / i;
    printf("%.15f\n", sum);
    return 0;
}
C
gcc -O2 -Wall -o check check.c
c=$(./check)
perl=$(perl -e '$sum += 1.0 / $_ for 1 .. 10000; printf "%.15f\n", $sum')
python=$(python3 -c 'print("%.15f" % __import__("functools").reduce(lambda s, i: s + 1.0 / i, range(1, 10001), 0.0))')
if [ "$c" = "$perl" ] && [ "$c" = "$python" ]; then
    echo "CHECK-OK $c"
else
    echo "CHECK-FAILED gcc=$c perl=$perl python3=$python"
    exit 1
fi
