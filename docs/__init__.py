"""Programs that write the documents' tables, pictures and notices."""
