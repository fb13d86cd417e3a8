"""Several real group coordinators under virtual time and seeded faults, and the members that use them."""
