"""The protocol over HTTP, by Starlette and uvicorn."""
