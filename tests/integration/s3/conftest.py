from tests.kit.botocore_clients import clients_are_made_cheaply

__all__ = ["clients_are_made_cheaply"]
