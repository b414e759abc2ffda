// The program of the guide's page "A program's bug in the guest".
#include <stdio.h>
#include <stdlib.h>

struct game {
    int scores[4];
    const char *name;
};

static struct game game = {.name = "darts"};

static void set_score(int player, int score)
{
    game.scores[player] = score;
}

int main(int count, char **words)
{
    for (int i = 1; i < count; i++)
        set_score(i, atoi(words[i]));
    printf("%s: the last score is %d\n", game.name, game.scores[count - 1]);
}
