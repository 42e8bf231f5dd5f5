"""Make the source rows and target rows of each shift, and train a small classifier on the source.

Each kind of data has a module. A maker is a function that makes one shift. Makers read data from
the data folder, from scikit-learn, or from installed packages. They download nothing.
"""
