"""What is watched, and how it is kept from ever disturbing a turn."""
