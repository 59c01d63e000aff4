"""One module a command; each declares its flags at import and imports what it needs when it runs."""
