"""The metadata port, modelled on Oxia, and its implementations. Concrete stores are named once, in storage/opening.py."""
