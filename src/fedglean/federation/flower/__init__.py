"""All that knows Flower: its apps, its grid, its commands and what they need to be watched for."""
