"""
Programs that run the tasks of jobs: the service for C{twistd}, and what supervises processes of
containers.
"""
