"""Rows into parts that are uploaded before anybody knows of them, and what the commit that brings them needs."""
