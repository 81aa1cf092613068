"""Defines the fields of requests and answers, and the messages between the processes of a server."""
