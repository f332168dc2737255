"""What runs beside single calls: devices and streams, events, graphs, recorded functions."""
