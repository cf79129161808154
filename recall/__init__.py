"""The hidden tool and the memory behind it: schema, search, store, ledger, ingest."""
