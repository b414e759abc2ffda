int counted;

int twice(int number)
{
    counted++;
    return 2 * number;
}
