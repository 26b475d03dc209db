"""What a store promises, tried on the store itself: writes only keys of its own, and removes them."""
