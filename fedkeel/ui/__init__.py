"""The live page, ``fedkeel ui``: runs while they train, compared, started and stopped in a browser.

Pages are made on the server and work without a script; what a script adds is that they follow the runs by themselves.
Nothing is loaded from elsewhere. Needs the extra ``ui``.
"""
