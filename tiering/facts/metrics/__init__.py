"""The store as numbers: what a monitoring system asks for. Reads, and answers on this machine; changes nothing."""
