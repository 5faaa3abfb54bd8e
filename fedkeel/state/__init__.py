"""What clients remember, client by client: tables of rows, and where these lie."""
