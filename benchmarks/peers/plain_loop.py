"""The plain loop (``fedkeel.bench.plain``) as a process of its own."""

import common

from fedkeel.bench.plain import PlainLoop
from fedkeel.bench.works import find


def main() -> None:
    options, clock = common.options(layout=["usual", "channels_last"]), common.Clock()
    last = options.layout == "channels_last"
    loop = PlainLoop(find(options.work), common.SIZE, common.images(), common.CORES, last)
    for _ in range(options.rounds):
        loop.run(1)
        clock.round_done(float("nan"))
    loop.close()
    clock.report()


if __name__ == "__main__":
    main()
