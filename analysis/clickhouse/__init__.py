"""The same questions asked of the Collector's table in ClickHouse, where one machine is not enough."""
