"""`python -m bppsa.plan_training`; as a module it cannot be imported, since it would hide the function of that name."""

if __name__ != "__main__":
    raise ImportError("bppsa.plan_training is a function: write `from bppsa import plan_training`", name=__name__)

from bppsa.api.plan_command import main

main()
