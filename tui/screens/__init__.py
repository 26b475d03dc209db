"""The screens: each shows facts and offers actions."""
